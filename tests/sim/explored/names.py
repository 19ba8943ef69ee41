"""Every history of changes of one name next to a claim: a small world, explored state by state.

The changes are the product's own: :class:`Name` of the use cases on the steps of the Cassandra store. The claim log is
a :class:`State` made by entries of an :class:`EntryDraft`. The world has the name's row, the stored messages, the log,
one caller who claims and acknowledges, and processes that fail or stop at any point. No state is explored twice.

A reader by time is shown the messages that are stored at one instant and are a value of the name.
At first the name stands for message 1. When all processes have ended, one more looks at the name, undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from queuey.api.claims import JobStatus
from queuey.claims.rules.entries import decode_entry, encode_entry
from queuey.claims.rules.entry_draft import EntryDraft, Poll
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus
from queuey.messages.names import Changed, Name
from queuey.model.errors import QueueyError, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import Location, Message, Named, NewMessage, Queue
from queuey.storage.cassandra.tables.names import named_of, require_row
from queuey.storage.cassandra.write import name_steps
from queuey.storage.cassandra.write.name_steps import Found, NameRow
from queuey.storage.cassandra.write.post_keys import MadeIds
from tests.sim.explored.post_keys import (
    ASKING,
    Failed,
    Look,
    MakeIds,
    Remove,
    Swap,
    TimeLeft,
    Write,
    ask_for,
    ids_of,
    replay,
    search,
    versions_of,
)

Kind = Literal["PUT", "POST", "DELETE", "look", "read"]
Mutation = Literal[
    "",
    "version not compared",
    "not in the log",
    "not removed",
    "free too early",
    "read before, given after",
    "settled at once",
    "shown unasked",
]
"""The mechanism that is taken out."""
MAX_PAUSES = 1
MAX_LOOKS = 2
MAX_IDS = 2
"""Max ids of one process. Without it, two processes that hinder each other would never end."""


class Lost(NamedTuple):
    """An answer that did not arrive. The step is repeated, whatever has happened since."""


class Scan(NamedTuple):
    """Reads the stored messages and a possibly outdated row. Answered with :class:`Scanned`."""


class Scanned(NamedTuple):
    """The result of :class:`Scan`."""

    there: tuple[int, ...]
    row: NameRow | None
    asks: bool = True
    """Whether the reader looks at the name where needed."""


class Shown(NamedTuple):
    """What a reader by time is shown, and what it read."""

    ids: tuple[int, ...]
    scanned: Scanned


class Process(Struct, frozen=True):
    """A change: the answers to its steps so far, and its end."""

    number: int
    kind: Kind
    answers: tuple[Any, ...] = ()
    looks: int = 0
    doubted: bool = False
    """The answer to its step did not arrive."""
    end: Any = None
    """Changed, the outcome of a failure, the code of a refusal, or ``crashed``; None while it goes on."""


class Claimer(Struct, frozen=True):
    """A caller who claims once and acknowledges once: what it read, up to which entry, and the results."""

    read: tuple[int, ...] | None = None
    known: int = 0
    given: tuple[tuple[int, int], ...] | None = None
    acknowledged: tuple[int, ...] | None = None


class World(Struct, frozen=True):
    """The whole state."""

    processes: tuple[Process, ...]
    row: NameRow | None
    there: frozenset[int]
    removed: frozenset[int] = frozenset()
    log: tuple[bytes, ...] = ()
    claimer: Claimer = Claimer()
    gone: frozenset[int] = frozenset()
    """Values that were removed when a change had succeeded."""
    confirmed: frozenset[int] = frozenset({1})
    """Messages that were values. Others may be given while their change is running, as with every failed post."""
    wrong: str = ""
    faults: int = 0
    crashes: int = 0


def explore(
    kinds: tuple[Kind, ...], *, faults: int, crashes: int, mutation: Mutation = "", claims: bool = True
) -> tuple[int, list[str]]:
    """Explores every history of concurrent changes, and of a claim if ``claims``; see :func:`search`."""

    def futures(world: World, wrong: list[str]) -> Iterator[World]:
        wrong += [world.wrong] if world.wrong else []
        is_over = len(world.processes) > len(kinds)
        if any(process.end is None for process in world.processes):
            return _next_worlds(world, mutation, undisturbed=is_over)
        if is_over:
            wrong += _find_violations(world)
            return iter(())
        last = (*world.processes, Process(len(kinds) + 1, "look"))
        return iter([replace(world, processes=last, faults=0, crashes=0)])

    row = NameRow("done", b"old", ids_of(1), 1)
    processes = tuple(Process(n, kind) for n, kind in enumerate(kinds, 1))
    claimer = Claimer() if claims else Claimer(given=())
    return search(World(processes, row, frozenset({1}), claimer=claimer, faults=faults, crashes=crashes), futures)


def _find_violations(world: World) -> Iterator[str]:
    *before, look = world.processes
    if not isinstance(look.end, Changed):
        yield f"nobody could look at the name: {look.end}"
        return
    current = None if look.end.location is None else look.end.location[1][0]
    if world.there != ({current} - {None}):
        yield f"the name stands for {current}, and {set(world.there)} is there"
    done = [one for one in before if isinstance(one.end, Changed) and one.end.stored]
    if current == 1 and done:
        yield f"{done} was answered, and the name stands for what it did before"
    if any(one.end == "none" and _is_of(one, current) for one in before):
        yield f"{current} is there, and was answered with outcome none"
    state = _state(world.log)
    given = [
        (number, id_) for number, id_ in world.claimer.given or () if id_ not in (world.claimer.acknowledged or ())
    ]
    for number, id_ in given:
        [settled] = EntryDraft(state, 0, ClaimTiming()).acknowledge([ClaimReceipt(1, *_position(id_), number)])
        if id_ != current and settled.status is not ReceiptStatus.SUPERSEDED and id_ in _find_replaced(world):
            yield f"who has {id_} is told {settled.status} at acknowledging it, and {current} is there"


def _find_replaced(world: World) -> frozenset[int]:
    """Returns the values that were confirmed and replaced. A caller who held one must be told."""
    return world.confirmed & world.removed


def _next_worlds(world: World, mutation: Mutation, *, undisturbed: bool) -> Iterator[World]:
    for process in world.processes:
        if process.end is not None:
            continue
        if world.crashes:
            yield replace(_end_process(world, process, "crashed"), crashes=world.crashes - 1)
        step = _next_step(process)
        for after, answer in _answer_worlds(world, process, step, mutation):
            if isinstance(answer, Lost):
                yield _with_process(after, replace(process, doubted=True))
                continue
            looks = process.looks + isinstance(step, Look)
            answers = (*process.answers, answer)
            yield _record_end(after, replace(process, answers=answers, looks=looks, doubted=False))
    if not undisturbed:
        yield from _claimer_worlds(world, mutation)


# The claim


def _claimer_worlds(world: World, mutation: Mutation) -> Iterator[World]:
    """Yields the world after the claimer's next step: it reads, then claims what it read, then acknowledges.

    A claim that another entry preceded is tried again, after a new read if something was withdrawn since.
    """
    claimer, state = world.claimer, _state(world.log)
    if claimer.given is None and claimer.read is None:
        fresh = tuple(sorted(id_ for id_ in world.there if not state.is_known(_position(id_))))
        yield replace(world, claimer=Claimer(fresh, len(world.log)))
    elif claimer.given is None and claimer.read is not None:
        if claimer.known < len(world.log):
            # Refused: another entry came first. What was read is usable only if nothing was withdrawn since.
            stale = state.withdrawn > claimer.known and mutation != "read before, given after"
            yield replace(world, claimer=Claimer(None) if stale else Claimer(claimer.read, len(world.log)))
            return
        draft = EntryDraft(state, 0, ClaimTiming())
        poll = Poll(9, 60, 1 << 20)
        draft.deliver([poll], [], [Message(id_, 0, 1, 0, "x") for id_ in claimer.read])
        given = tuple((len(world.log) + 1, message.ticks) for message in poll.given)
        log = (*world.log, encode_entry(draft.make_entry(0))) if given else world.log
        given_too_late = [id_ for _, id_ in given if id_ in world.gone]
        wrong = f"{given_too_late} was given after its replacement had been answered" if given_too_late else ""
        yield replace(world, claimer=Claimer(given=given), log=log, wrong=wrong)
    elif claimer.given and claimer.acknowledged is None:
        draft = EntryDraft(state, 0, ClaimTiming())
        settled = draft.acknowledge([ClaimReceipt(1, *_position(id_), number) for number, id_ in claimer.given])
        done = tuple(one.receipt.ticks for one in settled if one.status is ReceiptStatus.ACCEPTED)
        log = (*world.log, encode_entry(draft.make_entry(0))) if draft.has_changes_beyond_cursor else world.log
        yield replace(world, claimer=replace(claimer, acknowledged=done), log=log)


_states: dict[tuple[bytes, ...], State] = {}


def _state(log: tuple[bytes, ...]) -> State:
    """Returns the cached state after all entries. Do not change it."""
    if log not in _states:
        state = State()
        for number, body in enumerate(log, 1):
            state.apply(number, decode_entry(body))
        _states[log] = state
    return _states[log]


# The changes


class Is(NamedTuple):
    """Asks whether a message exists and is not done. Answered with a bool."""

    location: Location


class Delete(NamedTuple):
    location: Location


class Supersede(NamedTuple):
    """Records in the claim log that a message is replaced."""

    location: Location


class Pause(NamedTuple):
    pass


class SimulatedName(Name):
    """A name whose steps are carried out by the store's code or by the simulated world.

    Args:
        new_version: Makes the versions of its rows.
    """

    def __init__(self, new_version: Callable[[], int]) -> None:
        self._new_version = new_version
        self._queue = Queue(application="", name="", uid=0, qid=0)
        self._name = "n"

    async def find(self) -> Named | None:
        found: Found = await name_steps.find(ASKING, "n", self._new_version)
        return None if found.row is None else named_of(found)

    async def write(self, item: NewMessage | None, content: bytes, seen: Named | None) -> Named:
        if item is None:
            assert seen is not None
            return named_of(Found(await name_steps.clear(ASKING, "n", require_row(seen), self._new_version)))
        row = None if seen is None else require_row(seen)
        return named_of(Found(await name_steps.write(ASKING, "n", row, content, 0, self._new_version)))

    async def settle(self, seen: Named) -> None:
        with suppress(StoreUnavailable):
            await name_steps.forget_replaced(ASKING, require_row(seen), self._new_version)

    async def find_status(self, location: Location) -> JobStatus | None:
        return "waiting" if await ask_for(Is(location)) else None

    async def delete(self, location: Location) -> None:
        await ask_for(Delete(location))

    async def supersede(self, location: Location) -> None:
        await ask_for(Supersede(location))

    async def pause(self, number: int) -> None:
        await ask_for(Pause())


ITEM = NewMessage("x", 1, 60)


async def _run_use_case(process: Process, content: bytes) -> Changed | Shown:
    """Runs the use case. Steps of the store replace its calls."""
    new_version = versions_of(process.number)
    if process.kind == "read":
        return await _read(new_version)
    name = SimulatedName(new_version)
    if process.kind == "look":
        return await _look(name)
    return await name.change(None if process.kind == "DELETE" else ITEM, content, free_only=process.kind == "POST")


async def _look(name: SimulatedName) -> Changed:
    named = await name.find()
    if named is None:
        return Changed(None, stored=False)
    await name.finish_replacement(named)
    return Changed(named.location, stored=False)


async def _read(new_version: Any) -> Shown:  # noqa: ANN401
    scanned: Scanned = await ask_for(Scan())
    if not scanned.asks:
        return Shown(scanned.there, scanned)
    row, marked = scanned.row, {(1, _position(id_)) for id_ in scanned.there}
    found = Found(row)
    if row is None or row.state != "done" or row.kept.runs or marked != {found.value[0]}:
        found = await name_steps.find_shown(ASKING, "n", new_version)
    return Shown(tuple(id_ for id_ in scanned.there if found.is_shown((1, _position(id_)))), scanned)


def _next_step(process: Process) -> Any:  # noqa: ANN401 - of the use case, or of the store
    """Returns the next step of a process, by running it again from its start with the recorded answers."""
    content = b"new" if process.kind == "POST" else b"%d" % process.number
    return replay(_run_use_case(process, content), process.answers)


def _record_end(world: World, process: Process) -> World:
    """Returns the world with a process, whose end is recorded if it has no further step.

    Also records what the end made wrong, and the values that were replaced for good.
    """
    try:
        _next_step(process)
    except StopIteration as ended:
        end = ended.value
        after = _end_process(world, process, end)
        if isinstance(end, Shown):
            return replace(after, wrong=_shown_violation(world, end))
        if end.stored or process.kind == "DELETE":
            return replace(after, gone=world.gone | (_find_replaced(world) - _value_under_replacement(world)))
        return after
    except StoreUnavailable as error:
        return _end_process(world, process, error.outcome)
    except QueueyError as error:
        return _end_process(world, process, error.code)
    return _with_process(world, process)


def _end_process(world: World, process: Process, end: object) -> World:
    return _with_process(world, replace(process, answers=(), looks=0, end=end))


def _shown_violation(world: World, end: Shown) -> str:
    row = end.scanned.row
    lasting = world.row is not None and row is not None and world.row.state == row.state == "done"
    value = world.row.ids.made if lasting and world.row == row and world.row.ids.runs else None  # type: ignore[union-attr]
    if len(end.ids) > 1:
        return f"{end.ids} were shown to a reader by time"
    if value in end.scanned.there and value not in end.ids:
        return f"{value} is the value all the time, and was not shown to a reader by time"
    return ""


def _value_under_replacement(world: World) -> set[int]:
    return set() if world.row is None else {world.row.kept.made}


def _with_process(world: World, process: Process) -> World:
    return replace(world, processes=tuple(process if one.number == process.number else one for one in world.processes))


Answers = Iterator[tuple[World, Any]]


def _answer_worlds(world: World, process: Process, step: Any, mutation: Mutation) -> Answers:  # noqa: ANN401, C901, PLR0912 - a case for each step
    faulty = replace(world, faults=world.faults - 1) if world.faults else None
    match step:
        case Look():
            if process.looks < MAX_LOOKS:
                yield world, world.row
        case MakeIds():
            number = process.number * 10 + sum(isinstance(one, MadeIds) for one in process.answers)
            if number < process.number * 10 + MAX_IDS:
                yield world, MadeIds(ids_of(number))
        case Swap(seen, row, final):
            for after in _compare_and_set(world, seen, row, mutation):
                unclear = process.doubted and not final and after.row != row
                yield after, Failed("unknown") if unclear else after.row
                if faulty:
                    yield replace(after, faults=faulty.faults), Failed("unknown")
                    yield replace(after, faults=faulty.faults), Lost()
            if faulty:
                yield faulty, Failed("none")
        case Write(made):
            landed = world if made.ids.made in world.removed else replace(world, there=world.there | {made.ids.made})
            yield landed, None
            if faulty:
                yield faulty, Failed("none")
                yield replace(landed, faults=faulty.faults), Failed("unknown")
        case Remove(ids, _):
            old = mutation == "not removed" and not _is_of(process, ids.made)
            yield (world if old else _remove(world, ids.made)), "none"
            if faulty:
                yield faulty, "unknown"
        case TimeLeft():
            yield world, 0
            if process.kind not in {"look", "read"} and sum(one is Pause for one in process.answers) < MAX_PAUSES:
                yield world, 1
        case Pause():
            yield world, Pause
        case Scan():
            yield world, Scanned(tuple(sorted(world.there)), world.row, asks=mutation != "shown unasked")
        case Is((_, position)):
            state = _state(world.log)
            early = mutation == "free too early" and position in state.outstanding
            yield world, position[0] in world.there and not state.is_done(position) and not early
        case Delete((_, position)):
            yield (world if mutation == "not removed" else _remove(world, position[0])), None
        case Supersede((_, position)):
            yield _supersede(world, position, process, mutation), None
            if faulty:
                yield faulty, Failed("none")


def _compare_and_set(world: World, seen: Any, row: Any, mutation: Mutation) -> Iterator[World]:  # noqa: ANN401 - rows
    expected = None if seen is None else seen.version
    present = None if world.row is None else world.row.version
    if mutation == "version not compared" or present == expected:
        if mutation == "settled at once" and row.state == "done":
            row = NameRow("done", row.content, row.ids, row.version)
        confirmed = {row.ids.made} if row.state == "done" and row.ids.runs else set()
        yield replace(world, row=row, confirmed=world.confirmed | confirmed)
    else:
        yield world


def _remove(world: World, id_: int) -> World:
    return replace(world, there=world.there - {id_}, removed=world.removed | {id_})


def _supersede(world: World, position: Position, process: Process, mutation: Mutation) -> World:
    """Returns the world after a message was recorded as replaced in the claim log, unless it was done already.

    It is wrong for a POST that makes its own message the value to replace one that is not done.
    """
    draft = EntryDraft(_state(world.log), 0, ClaimTiming())
    draft.supersede([position])
    if not draft.has_changes_beyond_cursor or mutation == "not in the log":
        return world
    # It may also finish the change of a PUT; then the row names a value of another process.
    own = process.kind == "POST" and world.row is not None and _is_of(process, world.row.ids.made)
    wrong = f"{position[0]} was replaced by POST and was not done" if own else ""
    return replace(world, log=(*world.log, encode_entry(draft.make_entry(0))), wrong=wrong)


def _position(number: int) -> Position:
    return number, 0


def _is_of(process: Process, number: int | None) -> bool:
    return number is not None and number // 10 == process.number
