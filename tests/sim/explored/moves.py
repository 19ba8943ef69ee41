"""Every history of a move by several processes that stop anywhere, in one partition of a plain or a dedup queue.

The log's state, the decisions on it and the steps of a process are the product's own. A step is atomic here, as are an
append to a log, a post under a key and a delete. Chunks have two messages, because longer ones take too long.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from types import coroutine
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from queuey.claims.log.message_finder import Sources
from queuey.claims.log.move_turns import MAX_CHUNK_BYTES, MoveOrder, MoveRequest, MoveTurn
from queuey.claims.rules.covers import ScanDuplicates, split_duplicates
from queuey.claims.rules.entry_draft import EntryDraft, Poll
from queuey.claims.rules.kinds.dedup import DedupRules
from queuey.claims.rules.kinds.plain import LogParts, PlainRules
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt
from queuey.model.ids import FIRST, Position
from queuey.model.messages import Location, Message, Page, Queue, Slice
from queuey.moves.active_move import PartitionMove
from tests.sim import world as simulated
from tests.sim.explored.post_keys import search

Event = Literal["cancel", "purge", "acknowledge", "release"]
Kind = Literal["plain", "dedup"]
Mutation = Literal["no key", "deleted first", "taken unasked", "no end", "two chunks", "not returned", "no covers"]
"""The mechanism that is taken out."""

MOVE = 7
PLACES: list[Position] = [(number, 0) for number in range(1, 6)]
CLAIMED = PLACES[1]
"""A message that a caller has claimed before the move begins."""
_BODY = "x" * (MAX_CHUNK_BYTES // 2 + 1)
_BODIES = {"plain": [_BODY] * 4, "dedup": [f"{letter}{_BODY}" for letter in "ABACD"]}
"""The bodies of the messages. Two of them are equal in the dedup queue."""
_GROUPS = {"plain": [[0], [1], [2], [3]], "dedup": [[0, 2], [1], [3], [4]]}
"""Indexes of the messages that are one message to consumers."""
_QUEUES = {kind: Queue(application="a", name="q", uid=1, qid=1, kind=kind) for kind in _BODIES}
_LOOP = simulated.SimulatedCore(simulated.Process(simulated.World(0), 0.0), 0.0).loop
"""The event loop for the futures of requests."""
_LATER: Position = (1000, 0)
_NOW = 1_000_000


class Ask(NamedTuple):
    """Asks the log for a turn. Answered with the turn."""

    moved: int
    last: Position
    give_back: bool


class Fetch(NamedTuple):
    """Reads messages by id. Answered with those that still exist."""

    places: list[Position]


class Publish(Struct, frozen=True):
    """Posts messages to the target under the chunk's key. Answered with the position of the last one there."""

    chunk: int
    messages: list[Message]
    after: Position


class Delete(NamedTuple):
    places: list[Position]


Step = Ask | Fetch | Publish | Delete


@coroutine
def _answer_to(step: Step) -> Generator[Step, Any, Any]:
    return (yield step)


class SimulatedMove(PartitionMove):
    """The move of the partition. The simulated world carries out its steps."""

    async def ask(self, *, moved: int = 0, last: Position = FIRST, give_back: bool = False) -> MoveTurn:
        turn: MoveTurn = await _answer_to(Ask(moved, last, give_back))
        return turn

    async def fetch(self, places: list[Position]) -> list[Message]:
        messages: list[Message] = await _answer_to(Fetch(places))
        return messages

    async def publish(self, chunk: int, messages: list[Message], after: Position) -> Position:
        last: Position = await _answer_to(Publish(chunk, messages, after))
        return last

    async def delete(self, places: list[Position]) -> None:
        await _answer_to(Delete(places))

    async def whole(self) -> None:
        while not self.is_over:
            await self.advance()


class DeletingFirst(SimulatedMove):
    """A move that deletes before it posts."""

    async def move_chunk(self, turn: MoveTurn) -> Position:
        messages = await self.fetch(turn.positions)
        await self.delete(turn.positions)
        return await self.publish(turn.chunk, messages, turn.last)


class World(Struct, frozen=True):
    """The stored state: the log's state, the messages of both queues, the keys, and past events."""

    log: bytes
    source: frozenset[Position]
    target: tuple[Position, ...] = ()
    keys: tuple[tuple[int, int], ...] = ()
    acknowledged: frozenset[Position] = frozenset()
    purged: frozenset[Position] | None = None
    cancelled: bool = False
    over: bool = False
    event: Event | None = None
    kind: Kind = "plain"
    lost: frozenset[Position] = frozenset()


class Process(Struct, frozen=True):
    """A process, given by the answers to its steps so far."""

    given: tuple[Any, ...] = ()
    returning: bool = False


class Node(Struct, frozen=True):
    """A state of the search."""

    world: World
    processes: tuple[Process | None, ...]
    crashes: int


def explore(
    *,
    processes: int,
    crashes: int,
    event: Event | None,
    kind: Kind = "plain",
    mutation: Mutation | None = None,
    lost: bool = False,
) -> tuple[int, list[str]]:
    """Explores histories; see :func:`search`.

    Args:
        processes: Number of processes.
        crashes: Max number of crashes.
        event: What happens in between.
        kind: The kind of the source queue.
        mutation: The mechanism that is taken out.
        lost: A message of the dedup queue was delivered before its post failed and was undone. Only a copy exists.
    """
    state = State()
    draft = EntryDraft(state, _NOW, ClaimTiming())
    draft.renew([ClaimReceipt(1, *CLAIMED)], 1000.0)
    state.apply(1, draft.make_entry(1))
    world = World(b"", frozenset(PLACES[: len(_BODIES[kind])]), event=event, kind=kind)
    if lost:
        world = replace(world, source=frozenset(PLACES[1:3]), lost=frozenset(PLACES[3:]))
        _deliver(world, state)
    world = replace(world, log=state.encode())

    def futures(node: Node, wrong: list[str]) -> list[Node]:
        following = _next_nodes(node, mutation)
        wrong += [] if following else _find_violations(node.world)
        return following

    def key(node: Node) -> object:
        return node.world, tuple(_process_key(process, mutation) for process in node.processes), node.crashes

    return search(Node(world, (Process(),) * processes, crashes), futures, key)


def _deliver(world: World, state: State) -> None:
    """Gives the first message to a caller, who releases it."""
    draft = EntryDraft(state, _NOW, ClaimTiming(), DedupRules, LogParts(until=_LATER[0]))
    draft.deliver([Poll(1, 1000.0, 1)], [], [_message(world, PLACES[0])])
    state.apply(2, draft.make_entry(1))
    draft = EntryDraft(state, _NOW, ClaimTiming())
    draft.release([ClaimReceipt(1, *PLACES[0], 2)])
    state.apply(3, draft.make_entry(1))


def _next_nodes(node: Node, mutation: Mutation | None) -> list[Node]:
    """Returns the nodes after one step or crash of each process, or after the event.

    Without a living process another one goes on, until the log has recorded the end.
    """
    nodes = []
    for at, process in enumerate(node.processes):
        if process is None:
            continue
        world, after = _take_step(node.world, process, mutation)
        nodes.append(Node(world, _with_process(node.processes, at, after), node.crashes))
        if node.crashes:
            nodes.append(Node(node.world, _with_process(node.processes, at, None), node.crashes - 1))
    if nodes and node.world.event is not None:
        nodes.append(replace(node, world=_apply_event(node.world)))
    if not nodes and not node.world.over:
        # All processes have stopped and none has recorded the end: another process goes on.
        nodes.append(replace(node, processes=(Process(),)))
    return nodes


def _with_process(
    processes: tuple[Process | None, ...], at: int, process: Process | None
) -> tuple[Process | None, ...]:
    return (*processes[:at], process, *processes[at + 1 :])


def _apply_event(world: World) -> World:
    state = State.decode(world.log)
    draft = EntryDraft(state, _NOW, ClaimTiming())
    match world.event:
        case "cancel":
            return replace(world, cancelled=True, event=None)
        case "purge":
            return replace(world, purged=frozenset(world.target), target=(), event=None)
        case "release":
            draft.release([ClaimReceipt(1, *CLAIMED)])
        case _:
            [settled] = draft.acknowledge([ClaimReceipt(1, *PLACES[2])])
            if settled.status.value == "done":
                world = replace(world, acknowledged=frozenset(PLACES[2:3]))
    state.apply(state.number + 1, draft.make_entry(1))
    return replace(world, log=state.encode(), event=None)


# A process


def _next_step(process: Process, mutation: Mutation | None) -> tuple[Step | None, MoveTurn | None]:
    """Replays a move with the answers so far; returns its next step, None at the end, and its last turn."""
    move = DeletingFirst(1) if mutation == "deleted first" else SimulatedMove(1)
    move.is_given_back = process.returning
    whole = move.whole()
    step: Step | None = whole.send(None)
    turn = None
    for answer in process.given:
        turn = answer if isinstance(answer, MoveTurn) else turn
        try:
            step = whole.send(answer)
        except StopIteration:
            step = None
    return step, turn


def _process_key(process: Process | None, mutation: Mutation | None) -> object:
    """Returns what a process knows and is about to do. Processes with equal keys behave equally."""
    if process is None:
        return None
    step, turn = _next_step(process, mutation)
    places = tuple(one.position for one in step.messages) if isinstance(step, Publish) else None
    shown = replace(step, messages=[]) if isinstance(step, Publish) else step
    mine = None if turn is None else (turn.chunk, tuple(turn.positions), turn.last, turn.ended)
    return process.returning, repr(shown), places, mine


def _take_step(world: World, process: Process, mutation: Mutation | None) -> tuple[World, Process | None]:
    """Carries out the next step of a process. Returns the process afterwards, or None if it has ended.

    A process that posts to a purged target starts again to give back what it took.
    """
    step, _ = _next_step(process, mutation)
    result: Any = None
    match step:
        case None:
            return replace(world, over=True), None
        case Ask():
            world, result = _ask(world, step, mutation)
        case Fetch(places):
            result = [_message(world, place) for place in places if place in world.source]
        case Publish():
            if world.purged is not None:
                return world, Process((), returning=True)
            world, result = _publish(world, step, mutation)
        case Delete(places):
            world = replace(world, source=world.source - set(places))
    return world, replace(process, given=(*process.given, result))


def _publish(world: World, step: Publish, mutation: Mutation | None) -> tuple[World, Position]:
    """Returns the world and the last position in the target. A chunk whose key exists is not posted again."""
    last_by_chunk = dict(world.keys)
    if not step.messages:
        return world, step.after
    if step.chunk in last_by_chunk and mutation != "no key":
        return world, (last_by_chunk[step.chunk], 0)
    target = (*world.target, *(message.position for message in step.messages))
    last = len(target)
    return replace(world, target=target, keys=tuple(sorted({**last_by_chunk, step.chunk: last}.items()))), (last, 0)


def _ask(world: World, step: Ask, mutation: Mutation | None) -> tuple[World, MoveTurn]:
    state = State.decode(world.log)
    move = state.move
    if move is not None and (mutation == "two chunks" or (mutation == "no end" and move.ended)):
        move.ended = move.ended and mutation != "no end"
        move.chunk, move.taken = (0, []) if mutation == "two chunks" and not step.moved else (move.chunk, move.taken)
    give = step.give_back and mutation != "not returned"
    stop = step.give_back or world.cancelled
    order = MoveOrder(move=MOVE, below=_LATER, exact=True, moved=step.moved, last=step.last, stop=stop, give_back=give)
    with _LOOP.running():
        request = MoveRequest(_QUEUES[world.kind], order)
    expired = ClaimTiming().expiry_limit(_NOW)
    calls = partial(_fetch, world), partial(_read, world), partial(_sift, world)
    with suppress(StopIteration):
        request.gather(state, Sources(1, expired, *calls, lambda messages, _expired: messages)).send(None)
    dedup = world.kind == "dedup" and mutation != "no covers"
    until = min(request.horizon, request.below)[0]
    kind = DedupRules if dedup else PlainRules
    draft = EntryDraft(state, _NOW, ClaimTiming(), kind, LogParts(copies=request.copies, until=until))
    request.edit(draft)
    if draft.has_changes_beyond_cursor:
        before = state.encode()
        state.apply(state.number + 1, draft.make_entry(1))
        turn = request.result(state)
        kept = before if mutation == "taken unasked" and turn.chunk else state.encode()
        return replace(world, log=kept), turn
    return world, request.result(state)


async def _sift(world: World, state: State, copies: ScanDuplicates, found: list[Message]) -> list[Message]:
    return split_duplicates(state.covers, copies, found)[0] if world.kind == "dedup" else found


async def _fetch(world: World, places: Sequence[Location]) -> list[Message]:
    return [_message(world, place) for _, place in places if place in world.source]


async def _read(world: World, part: Slice) -> Page:
    places = sorted(place for place in world.source if part.lower <= place < part.upper)
    size = 2
    more = len(places) > size
    messages = [_message(world, place) for place in places[:size]]
    following = (places[size - 1][0], places[size - 1][1] + 1) if more else part.upper
    return Page(messages, 2000, following, more)


def _message(world: World, place: Position) -> Message:
    return Message(*place, 1, 1 << 60, _BODIES[world.kind][PLACES.index(place)])


# Checks at the end


def _find_violations(world: World) -> list[str]:
    state = State.decode(world.log)
    hides = [cover.includes_position for cover in state.covers.by_digest.values()]
    copies = {PLACES[2]} if world.kind == "dedup" and any(each(PLACES[2]) for each in hides) else set()
    source = {place for place in world.source if not state.is_done(place)} - copies
    target = list(world.target)
    wrong = []
    for group in ({PLACES[number] for number in numbers} for numbers in _GROUPS[world.kind]):
        held = bool(group & source) + sum(place in group for place in target)
        if (
            held != 1
            and not group <= world.lost
            and not (group <= world.acknowledged and held == 0)
            and not group & (world.purged or set())
        ):
            wrong.append(f"{group} are there {held} times: {world}")
    duplicated = world.acknowledged & {*source, *target}
    if duplicated:
        wrong.append(f"{duplicated} were acknowledged, and are there: {world}")
    if [place for place in target if place != CLAIMED] != sorted(place for place in target if place != CLAIMED):
        wrong.append(f"the order is {target}")
    if state.move is None or state.move.chunk or not state.move.ended:
        wrong.append(f"the log says {state.move}")
    if not world.cancelled and world.purged is None and source - {CLAIMED}:
        wrong.append(f"{source} are left")
    return wrong
