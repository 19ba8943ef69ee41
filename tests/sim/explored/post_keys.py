"""Every history of posts with one idempotency key: a small world, explored state by state.

The posts are the product's own (:func:`carry_out`). The world has one key's row, changed by compare-and-set, messages
that may reach the store late, readers who pass an id once it is old enough, and processes that stop at any point.
:func:`_futures` lists what may happen next. No state is explored twice.

Time is modelled by events: a write is in time only if it returns before a reader passes its id, which stands for W and
for the longer D. A process that finds another's row may take it for old at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from types import coroutine
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct, structs

from queuey.model.errors import Outcome, QueueyError, StoreUnavailable
from queuey.model.messages import PostKey
from queuey.storage.cassandra.write.post_keys import IdRun, KeyRow, MadeIds, PostedIds, carry_out

MAX_ID = 1000
MAX_IDS = 3
"""Max ids made before the last post. Without it, two posts that hinder each other would never end."""
KEY = PostKey("key", b"content", 60)
Where = Literal["nowhere", "flying", "there", "removed"]
Mutation = Literal["", "no pending row", "removed unasked", "confirmed by others", "not removed", "late is in time"]
"""The mechanism that is taken out."""


class Look(NamedTuple):
    """Answered with the stored row, or None."""


class MakeIds(NamedTuple):
    """Answered with :class:`MadeIds`."""


class Swap(NamedTuple):
    """Answered with the row stored afterwards, or None."""

    seen: KeyRow | None
    row: KeyRow
    final: bool = True


class Write(NamedTuple):
    """Answered with None if all was written within W."""

    made: MadeIds


class Remove(NamedTuple):
    """Answered with the outcome."""

    ids: PostedIds
    unseen: bool


class TimeLeft(NamedTuple):
    """Answered with the seconds until these ids are W old; 0 if they are."""

    ids: PostedIds


Step = Look | MakeIds | Swap | Write | Remove | TimeLeft


@coroutine
def ask_for(step: Any) -> Generator[Any, Any, Any]:  # noqa: ANN401 - a step, and its answer
    return (yield step)


class Asking:
    """Steps that the simulated world carries out."""

    async def read(self) -> Any:  # noqa: ANN401 - a row
        return await ask_for(Look())

    async def make_ids(self) -> MadeIds:
        made: MadeIds = await ask_for(MakeIds())
        return made

    async def swap(self, seen: KeyRow | None, row: KeyRow, *, final: bool = True) -> Any:  # noqa: ANN401 - a row
        return await ask_for(Swap(seen, row, final))

    async def write(self, made: MadeIds) -> None:
        await ask_for(Write(made))

    async def remove(self, ids: PostedIds, *, unseen: bool) -> Outcome:
        outcome: Outcome = await ask_for(Remove(ids, unseen))
        return outcome

    async def time_left(self, ids: PostedIds) -> float:
        left: float = await ask_for(TimeLeft(ids))
        return left


ASKING = Asking()


class Failed(NamedTuple):
    """An answer that is an error."""

    outcome: Outcome


W = TypeVar("W")


def search(
    first: W, futures: Callable[[W, list[str]], Iterable[W]], key: Callable[[W], object] = lambda world: world
) -> tuple[int, list[str]]:
    """Explores each state once.

    Args:
        first: The first state.
        futures: Returns what may follow a state, and adds to the list what is wrong with it.
        key: States with equal keys have equal futures.

    Returns:
        The number of states, and the problems of the first bad one, at which the search ends.
    """
    seen, todo, wrong = {key(first)}, [first], list[str]()
    while todo and not wrong:
        for future in futures(todo.pop(), wrong):
            if (found := key(future)) not in seen:
                seen.add(found)
                todo.append(future)
    return len(seen), wrong


class Posted(NamedTuple):
    """A post that succeeded."""

    ids: tuple[int, ...]
    replayed: bool


class Process(Struct, frozen=True):
    """A post: the answers to its steps so far, the current step, and its end."""

    number: int
    answers: tuple[Any, ...] = ()
    step: Step = MakeIds()
    end: Any = None
    """Posted, the name of an error, or ``crashed``; None while it goes on."""


class Id(Struct, frozen=True):
    """The state of a message under one id."""

    where: Where = "nowhere"
    passed: Literal["", "seen", "missed"] = ""
    """What a reader that passed the id saw."""
    hidden: bool = False
    """Its post ended with outcome ``none``."""


class World(Struct, frozen=True):
    """The whole state. ``floating``: changes of the row that may still take effect."""

    row: KeyRow | None = None
    ids: tuple[tuple[int, Id], ...] = ()
    floating: tuple[tuple[int | None, KeyRow], ...] = ()
    processes: tuple[Process, ...] = ()
    posts: int = 0
    faults: int = 0
    crashes: int = 0

    def id(self, number: int) -> Id:
        return dict(self.ids).get(number, Id())

    def with_id(self, number: int, **fields: Any) -> World:  # noqa: ANN401 - fields of Id
        ids = dict(self.ids) | {number: structs.replace(self.id(number), **fields)}
        return structs.replace(self, ids=tuple(sorted(ids.items())))

    def with_process(self, process: Process) -> World:
        return structs.replace(
            self, processes=tuple(process if one.number == process.number else one for one in self.processes)
        )


def explore(*, posts: int, faults: int, crashes: int, mutation: Mutation = "") -> tuple[int, list[str]]:
    """Explores every history of concurrent posts, and of one more post after these have ended; see :func:`search`."""

    def futures(world: World, wrong: list[str]) -> Iterator[World]:
        if all(process.end is not None for process in world.processes):
            if len(world.processes) > posts:
                wrong += _find_violations(world)
                return iter(())
            world = structs.replace(world, processes=(*world.processes, Process(posts + 1)), faults=0, crashes=0)
        return _futures(world, mutation)

    processes = tuple(Process(number) for number in range(1, posts + 1))
    return search(World(processes=processes, posts=posts, faults=faults, crashes=crashes), futures)


def _find_violations(world: World) -> Iterator[str]:
    last = world.processes[-1].end
    if not isinstance(last, Posted):
        yield f"the last post failed: {last}"
        return
    alive = tuple(number for number, one in world.ids if one.where in {"there", "flying"})
    if alive != last.ids:
        yield f"{last.ids} was acknowledged and {alive} is there"
    ends = [one.end for one in world.processes if isinstance(one.end, Posted)]
    if any(end.ids != last.ids for end in ends):
        yield f"acknowledged differently: {ends}"
    if sum(not end.replayed for end in ends) > 1:
        yield f"carried out more than once: {ends}"
    if world.id(last.ids[0]).passed == "missed":
        yield f"a reader has missed {last.ids[0]}"
    if any(one.hidden and one.passed == "seen" for _, one in world.ids):
        yield "a reader has seen what was answered with outcome none"


def _futures(world: World, mutation: Mutation) -> Iterator[World]:
    """Yields the worlds after a step or crash of a process, a reader's pass of an id, or a late arrival."""
    for process in world.processes:
        if process.end is None:
            if world.crashes:
                yield structs.replace(_end_process(world, process, "crashed"), crashes=world.crashes - 1)
            step = process.step
            for after, answer in _taken_out(world, process, step, mutation) or _answers(world, process, step):
                yield _advance(after, structs.replace(process, answers=(*process.answers, answer)), step)
    last = len(world.processes) * 10 if len(world.processes) > world.posts else MAX_ID
    for number, one in world.ids:
        if one.where == "removed":
            continue  # it can have no effect any more
        if not one.passed and number < last:
            yield world.with_id(number, passed="seen" if one.where == "there" else "missed")
        if one.where == "flying":
            yield world.with_id(number, where="there")
    for change in world.floating:
        rest = tuple(one for one in world.floating if one is not change)
        yield structs.replace(_compare_and_set(world, *change), floating=rest)


def _next_step(process: Process) -> Step:
    """Returns the next step of a process, by running it again from its start with the recorded answers."""
    step: Step = replay(carry_out(ASKING, KEY, versions_of(process.number)), process.answers)
    return step


def versions_of(process: int) -> Callable[[], int]:
    return iter(range(process * 100, process * 100 + 100)).__next__


def replay(steps: Any, answers: Iterable[Any]) -> Any:  # noqa: ANN401 - a coroutine, and its step
    """Returns the step that comes after these answers."""
    step = steps.send(None)
    for answer in answers:
        failed = isinstance(answer, Failed)
        step = steps.throw(StoreUnavailable("", outcome=answer.outcome)) if failed else steps.send(answer)
    return step


def ids_of(number: int) -> PostedIds:
    return PostedIds(number, (IdRun(1, 0, 0, number, 0, 1),))


def _advance(world: World, process: Process, step: Step) -> World:
    try:
        return world.with_process(structs.replace(process, step=_next_step(process)))
    except StopIteration as ended:
        ids = tuple(position[0] for _, position in ended.value.locations)
        return _end_process(world, process, Posted(ids, ended.value.replayed))
    except StoreUnavailable as error:
        if error.outcome == "none" and isinstance(step, Remove):
            world = world.with_id(step.ids.made, hidden=True)
        return _end_process(world, process, f"unavailable: {error.outcome}")
    except QueueyError as error:
        return _end_process(world, process, error.code)


def _end_process(world: World, process: Process, end: object) -> World:
    """Returns the world with an ended process. Its answers are dropped: they can have no effect any more."""
    return world.with_process(Process(process.number, end=end))


Answers = Iterator[tuple[World, Any]]


def _answers(world: World, process: Process, step: Step) -> Answers:
    faulty = structs.replace(world, faults=world.faults - 1) if world.faults else None
    match step:
        case MakeIds():
            if len(world.ids) >= MAX_IDS and process.number <= world.posts:
                return
            number = process.number * 10 + sum(isinstance(one, MadeIds) for one in process.answers)
            yield world.with_id(number), MadeIds(ids_of(number))
        case Swap(seen, row):
            expected = None if seen is None else seen.version
            after = _compare_and_set(world, expected, row)
            yield after, after.row
            if faulty:
                yield _compare_and_set(faulty, expected, row), Failed("unknown")
                yield structs.replace(faulty, floating=(*faulty.floating, (expected, row))), Failed("unknown")
        case Write(made):
            yield from _writes(world, made.ids.made, faulty)
        case Remove(ids, unseen):
            removed = world.with_id(ids.made, where="removed")
            yield removed, "none" if not (unseen and world.id(ids.made).passed) else "unknown"
            if faulty:
                yield faulty, "unknown"
        case TimeLeft(ids):
            yield world, 0
            if not world.id(ids.made).passed and process.number <= world.posts:
                yield world, 1


def _writes(world: World, number: int, faulty: World | None) -> Answers:
    """Yields the worlds after a write that arrives in time, late, unnoticed, after its sender gave up, or never."""
    landed = world if world.id(number).where == "removed" else world.with_id(number, where="there")
    if not world.id(number).passed:
        yield landed, None
    else:
        yield world, Failed("none")
        faulty = faulty or world
    if faulty:
        yield faulty, Failed("none")
        yield structs.replace(landed, faults=faulty.faults), Failed("unknown")
        if world.id(number).where != "removed":
            yield faulty.with_id(number, where="flying"), Failed("unknown")


def _compare_and_set(world: World, expected: int | None, row: KeyRow) -> World:
    """Returns the world with the row, or unchanged if the present row has another version."""
    present = None if world.row is None else world.row.version
    return structs.replace(world, row=row) if present == expected else world


def _taken_out(  # noqa: PLR0911 - a return for each mechanism
    world: World, process: Process, step: Step, mutation: Mutation
) -> list[tuple[World, Any]]:
    """Returns the effect of a step that belongs to the removed mechanism, or nothing for a normal step."""
    match mutation, step:
        case "no pending row", Swap(_, KeyRow(state="pending") as row) if world.row is None:
            return [(world, row)]
        case "no pending row", Swap(_, KeyRow(state="done") as row):
            return [_with_row(_compare_and_set(world, None, row))]
        case "removed unasked", Swap(KeyRow() as seen, KeyRow(state="abandoned") as row) if not _is_of(process, seen):
            return [(world, row)]
        case "confirmed by others", Swap(KeyRow() as seen, KeyRow(state="abandoned") as row):
            if not _is_of(process, seen) and world.id(seen.ids.made).where == "there":
                return [_with_row(_compare_and_set(world, seen.version, structs.replace(row, state="done")))]
        case "not removed", Remove(_, False):
            return [(world, "none")]
        case "late is in time", Write(made) if world.id(made.ids.made).passed:
            return [(world.with_id(made.ids.made, where="there"), None)]
    return []


def _with_row(world: World) -> tuple[World, KeyRow | None]:
    return world, world.row


def _is_of(process: Process, row: KeyRow) -> bool:
    return row.ids.made // 10 == process.number
