"""What a failed request leaves: an error with outcome ``none`` left nothing, and a call that ends well did all of it.

Each request of each write fails once: it is refused, or its answer is lost, with or without an effect. Or another
process acts on the same thing before it, or before it is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest

from queuey.model import ids
from queuey.model.errors import QueueyError, StoreUnavailable
from queuey.model.groups import GroupChange, GroupHead, GroupRow, OwnedOffset
from queuey.model.messages import LogEntry, OffsetChange, PostKey, Queue, QueueSpec, Record
from queuey.storage import Store, bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.cluster import Encoded, InDoubt, Rows, StatementRequest
from queuey.storage.cassandra.time.clock_watch import SELECT_NOW
from queuey.storage.cassandra.time.timing_in_force import PUBLISH_TAILS, READ_TIMING
from tests.backends import APP, cassandra_options
from tests.contract.samples import new_message, whole_partition
from tests.replacing import replace
from tests.sim.cassandra.one_node import in_process
from tests.sim.cassandra.one_node.in_process import InProcessCluster, InProcessStore

Way = Literal["refused", "lost", "done and lost"]
WAYS: tuple[Way, ...] = ("refused", "lost", "done and lost")
DIGESTS = b"\x01" * 32, b"\x02" * 32
PLACE, SECOND = (1, (ids.EPOCH_TICKS + 7, 7)), (1, (ids.EPOCH_TICKS + 8, 7))
BACKGROUND = {SELECT_NOW, PUBLISH_TAILS, READ_TIMING}
COVER = b"d" * 16


class FailingCluster(InProcessCluster):
    """A node of which one request fails.

    Attributes:
        fails_at: Number of the request that fails, counted from 1; 0 for none.
        way: How it fails; None if it does not fail.
        meanwhile: The act of another process, before the answer to a request that fails, or before one that does not.
        count: Number of requests so far, while one is to fail.
        reads: The numbers of those that read.
    """

    fails_at = count = 0
    reads: frozenset[int] = frozenset()
    way: Way | None = None
    meanwhile: Callable[[], object] | None = None

    def ask(
        self, request: StatementRequest | Encoded, end: Callable[[Rows | None, StoreUnavailable | None], None]
    ) -> None:
        self.count += self.fails_at > 0 and request.statement not in BACKGROUND
        if request.statement.reads:
            self.reads |= {self.count}
        if self.count != self.fails_at or not self.fails_at or request.statement in BACKGROUND:
            super().ask(request, end)
            return
        self.count += 1  # Later requests, also of the other process, do not fail.
        if self.way == "done and lost" and not request.statement.reads:
            super().ask(request, lambda _rows, _error: None)
        if self.meanwhile is not None:
            self.meanwhile()
        if self.way is None:
            super().ask(request, end)
        elif self.way == "refused" or request.statement.reads:
            end(None, StoreUnavailable("refused"))
        else:
            end(None, InDoubt("no answer"))


class Scene:
    """A store in which there is one of everything, and another store that reads it.

    Attributes:
        word: What the present act writes.
        queue: The queue.
        record: The record.
        head: The group's head.
    """

    def __init__(self) -> None:
        self.word = b"own"
        self.cluster = make_cluster()
        self.store: CassandraStore = InProcessStore(self.cluster, cassandra_options(by_hand=False))
        assert self.store.ready(60)
        self.witness = InProcessStore(self.cluster, cassandra_options(by_hand=False))
        assert self.witness.ready(60)
        store = self.store
        bridge.run(store.applications.create_application(APP))
        self.queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", QueueSpec(read_delay=0.0)))
        bridge.run(store.applications.add_key(APP, DIGESTS[0], note="first"))
        bridge.run(store.offsets.set_offsets(self.queue, "readers", [OffsetChange(1, (ids.EPOCH_TICKS, 5))]))
        self.record = bridge.run(store.records.set_record(Record("kind", APP, "r", b"value", 7)))
        change = GroupChange(GroupHead(epoch=1), (GroupRow(1, 0, b"row"),))
        head = bridge.run(store.groups.change_group(APP, "g", 0, change))
        assert head is not None
        self.head = head
        bridge.run(store.ledger.enter("work", 0, b"first", expected=None))
        self.named = bridge.run(store.names.write_named(self.queue, "name", new_message("old"), b"old", None))
        bridge.run(store.messages.put(self.queue, [PLACE], new_message("put")))
        bridge.run(store.covers.write_covers(self.queue, 1, [(COVER, 1 << 59)]))

    def close(self) -> None:
        self.store.close()
        self.witness.close()

    def act(self, act: str, *, by_witness: bool = False) -> str:
        """Carries out an act; returns ``done``, the outcome of a failure, or the error of a refusal."""
        before = self.store, self.word
        try:
            self.store, self.word = (self.witness, b"other") if by_witness else before
            result = ACTS[act](self)
        except StoreUnavailable as error:
            return error.outcome
        except QueueyError as error:
            return type(error).__name__
        finally:
            word = self.word
            self.store, self.word = before
        if isinstance(result, bytes) and result != word:
            return "another's"
        return "nothing done" if (result is None and act in MAY_DO_NOTHING) or result is False else "done"

    def find_requests(self, act: str, way: Way | None) -> list[int]:
        """Carries out an act; returns the numbers of its requests, without reads that fail alike in another way."""
        self.cluster.fails_at = MAX_REQUESTS
        self.act(act)
        self.cluster.fails_at = 0
        assert self.cluster.count < MAX_REQUESTS, "the call sends more requests than are counted"
        left_out = self.cluster.reads if way in WAYS[1:] else frozenset[int]()
        return [number for number in range(1, self.cluster.count + 1) if number not in left_out]

    def look(self) -> dict[str, Any]:
        """Returns what readers see, without random numbers."""
        store = self.witness
        seen: dict[str, Any] = {"applications": bridge.run(store.applications.application_names())}
        seen["keys"] = [(key.id, key.note, key.expires) for key in bridge.run(store.applications.keys(APP))]
        seen["found keys"] = [bridge.run(store.applications.find_key(digest)) is not None for digest in DIGESTS]
        seen["groups"] = bridge.run(store.groups.group_names(APP))
        state = bridge.run(store.groups.group_state(APP, "g"))
        seen["group"] = None if state is None else (state.head.epoch, state.rows)
        seen["records"] = [(r.name, r.value) for r in bridge.run(store.records.records("kind", APP))]
        seen["entries"] = [bridge.run(store.ledger.entry("work", piece)) for piece in (0, 1)]
        queues = bridge.run(store.catalogue.list_queues(APP))
        seen["queues"] = [(queue.name, queue.ttl, queue.uid == self.queue.uid) for queue in queues]
        for queue in [bridge.run(store.catalogue.queue(APP, queue.name, fresh=True)) for queue in queues]:
            seen[queue.name] = self._look_into(store, queue)
        return seen

    def _look_into(self, store: Store, queue: Queue) -> tuple[Any, ...]:
        [page] = bridge.run(store.messages.read(queue, [whole_partition()]))
        offsets = {
            name: [offset.position for offset in bridge.run(store.offsets.group_offsets(queue, name))]
            for name in bridge.run(store.offsets.groups(queue))
        }
        log = bridge.run(store.claim_logs.read_log(queue, 1, 1))
        owned = bridge.run(store.offsets.owned_offsets(queue, "readers"))
        named = bridge.run(store.names.find_named(queue, "name"))
        return (
            sorted(repr(message.body) for message in page.messages),
            offsets,
            [row.owner for row in owned.rows.values()],
            (log.last, log.entries),
            (named and (named.location is not None, named.content)),
            bridge.run(store.covers.read_covers(queue, 1, [COVER])),
        )


def make_cluster() -> FailingCluster:
    with replace(in_process.InProcessCluster, FailingCluster):
        cluster = in_process.make_cluster()
    assert isinstance(cluster, FailingCluster)
    return cluster


Act = Callable[[Scene], object]
ACTS: dict[str, Act] = {
    "create_queue": lambda s: bridge.run(s.store.catalogue.create_queue(APP, "new", QueueSpec(read_delay=0.0)))[1],
    "update_queue": lambda s: bridge.run(s.store.catalogue.update_queue(s.queue, QueueSpec(ttl=len(s.word)))),
    "purge_queue": lambda s: bridge.run(s.store.catalogue.purge_queue(s.queue)),
    "delete_queue": lambda s: bridge.run(s.store.catalogue.delete_queue(s.queue)),
    "create_application": lambda s: bridge.run(s.store.applications.create_application("new")),
    "add_key": lambda s: bridge.run(s.store.applications.add_key(APP, DIGESTS[1])),
    "revoke_key": lambda s: bridge.run(s.store.applications.revoke_key(APP, DIGESTS[0].hex()[:8])),
    "expire_key": lambda s: bridge.run(s.store.applications.expire_key(APP, DIGESTS[0].hex()[:8], 7.0)),
    "append": lambda s: bridge.run(s.store.messages.append(s.queue, [new_message("a"), new_message("b")])),
    "append_once": lambda s: bridge.run(
        s.store.keyed_posts.append_once(s.queue, [new_message("a")], PostKey("key", b"content", 60))
    ),
    "put": lambda s: bridge.run(s.store.messages.put(s.queue, [PLACE], new_message(s.word))),
    "put two": lambda s: bridge.run(s.store.messages.put(s.queue, [PLACE, SECOND], new_message(s.word))),
    "delete": lambda s: bridge.run(s.store.messages.delete(s.queue, [PLACE])),
    "write_named": lambda s: bridge.run(
        s.store.names.write_named(s.queue, "name", new_message(s.word), s.word, s.named)
    ),
    "clear name": lambda s: bridge.run(s.store.names.write_named(s.queue, "name", None, b"", s.named)),
    "set_offsets": lambda s: bridge.run(
        s.store.offsets.set_offsets(s.queue, "readers", [OffsetChange(1, (ids.EPOCH_TICKS + 9, 9))])
    ),
    "hand_over": lambda s: bridge.run(
        s.store.offsets.hand_over(s.queue, "others", None, [OwnedOffset(1, owner=1, epoch=1)])
    ),
    "delete_group": lambda s: bridge.run(s.store.offsets.delete_group(s.queue, "readers")),
    "change_group": lambda s: bridge.run(
        s.store.groups.change_group(
            APP, "g", s.head.version, GroupChange(GroupHead(epoch=2), (GroupRow(1, 0, s.word),))
        )
    ),
    "new group": lambda s: bridge.run(s.store.groups.change_group(APP, "h", 0, GroupChange(GroupHead(epoch=2), ()))),
    "remove_group": lambda s: bridge.run(s.store.groups.remove_group(APP, "g", s.head.version)),
    "set_record": lambda s: bridge.run(s.store.records.set_record(Record("kind", APP, "new", s.word, 7))),
    "change record": lambda s: bridge.run(
        s.store.records.set_record(Record("kind", APP, "r", s.word, 7, s.record.version))
    ),
    "remove_record": lambda s: bridge.run(s.store.records.remove_record(s.record)),
    "enter": lambda s: bridge.run(s.store.ledger.enter("work", 1, s.word, expected=None)),
    "change entry": lambda s: bridge.run(s.store.ledger.enter("work", 0, s.word, expected=b"first")),
    "append_entry": lambda s: bridge.run(s.store.claim_logs.append_entry(s.queue, 1, LogEntry(1, s.word))),
    "forget_covers": lambda s: bridge.run(s.store.covers.forget_covers(s.queue, 1, 1 << 60)),
}
MAX_REQUESTS = 40


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", [act for act in ACTS if act != "put two"])
def test_every_request_of_every_write(act: str, way: Way) -> None:
    """Whichever request fails, ``none`` means that nothing was done, and an answer that all was."""
    whole = Scene()
    before = whole.look()
    numbers = whole.find_requests(act, way)
    after = whole.look()
    whole.close()
    for number in numbers:
        scene = Scene()
        scene.cluster.fails_at, scene.cluster.way = number, way
        outcome = scene.act(act)
        scene.cluster.fails_at = 0
        seen = scene.look()
        scene.close()
        allowed = {"done": [after], "none": [before], "unknown": [before, after]}[outcome]
        assert seen in allowed, (number, outcome)


@pytest.mark.parametrize("way", [None, *WAYS])
def test_a_message_is_readable_while_it_is_overwritten(way: Way | None) -> None:
    """At each request of a write over a message, and wherever it stops, readers find its old or its new form, once."""
    counted = Scene()
    numbers = counted.find_requests("put", None)
    counted.close()
    for number in numbers:
        scene, found = Scene(), list[list[str | bytes]]()

        def read(scene: Scene = scene, found: list[list[str | bytes]] = found) -> None:
            [page] = bridge.run(scene.witness.messages.read(scene.queue, [whole_partition()]))
            found.append([one.body for one in page.messages if one.position == PLACE[1]])

        scene.cluster.meanwhile = read
        scene.cluster.fails_at, scene.cluster.way = number, way
        scene.act("put")
        read()
        scene.cluster.fails_at = 0
        scene.act("put")
        read()
        scene.close()
        assert all(bodies in (["put"], [b"own"]) for bodies in found), number
        assert found[-1] == [b"own"], "written again"
    assert len(numbers) >= 2


@pytest.mark.parametrize("way", WAYS)
def test_messages_overwritten_together(way: Way) -> None:
    """If only some of several messages were overwritten, the error does not claim that nothing was written."""
    outcomes = set()
    for number in range(1, 9):
        scene = Scene()
        bridge.run(scene.store.messages.put(scene.queue, [SECOND], new_message("put")))
        before = scene.look()
        scene.cluster.fails_at, scene.cluster.way = number, way
        outcome = scene.act("put two")
        outcomes.add(outcome)
        assert outcome != "none" or scene.look() == before, number
        scene.close()
    assert "unknown" in outcomes


def find_orders(first: str, second: str) -> list[tuple[str, str, Any]]:
    """Returns both answers and what readers see, for each order of two acts."""
    orders = []
    for is_first in (True, False):
        scene = Scene()
        answers = {}
        for act, by_witness in ((first, False), (second, True)) if is_first else ((second, True), (first, False)):
            answers[by_witness] = scene.act(act, by_witness=by_witness)
        orders.append((answers[False], answers[True], scene.look()))
        scene.close()
    return orders


FAMILIES: Sequence[Sequence[str]] = (
    ("update_queue", "purge_queue", "delete_queue", "append", "append_once", "put", "delete", "append_entry"),
    ("update_queue", "purge_queue", "delete_queue", "write_named", "clear name"),
    ("purge_queue", "delete_queue", "set_offsets", "hand_over", "delete_group"),
    ("create_queue", "create_application"),
    ("add_key", "revoke_key", "expire_key"),
    ("change_group", "remove_group", "new group"),
    ("set_record", "change record", "remove_record"),
    ("enter", "change entry"),
)
"""Acts that concern one thing."""
MAY_DO_NOTHING = {"change_group", "new group"}
"""Acts that return None if they were refused."""
REMOVALS = {"delete_queue", "delete_group", "revoke_key", "remove_group", "remove_record"}
"""Acts that are done if the thing is gone after a doubt, whoever has removed it."""
PAIRS = dict.fromkeys((a, b) for acts in FAMILIES for a in acts for b in acts)
del PAIRS["append_once", "append_once"]  # The second of two posts with one key is told to come again.


def play_pairs(act: str, other: str, way: Way | None) -> Iterator[tuple[str, str, Any]]:
    """Yields both answers and what readers see, for each request of an act at which another process acts."""
    counted = Scene()
    numbers = counted.find_requests(act, way)
    counted.close()
    for number in numbers:
        scene = Scene()
        answers: list[str] = []
        scene.cluster.meanwhile = lambda scene=scene, answers=answers: answers.append(scene.act(other, by_witness=True))
        scene.cluster.fails_at, scene.cluster.way = number, way
        answer = scene.act(act)
        scene.cluster.fails_at = 0
        seen = scene.look()
        scene.close()
        if not answers:  # A row that is read in the background was not read this time.
            return
        yield answer, answers[0], seen


@pytest.mark.parametrize(
    ("act", "other"),
    [
        pytest.param(*pair, id="-".join(pair), marks=[pytest.mark.slow] if number % 3 else [])
        for number, pair in enumerate(PAIRS)
    ],
)
def test_two_acts_at_one_moment(act: str, other: str) -> None:
    """If another process acts within a write, at any of its requests, all is as if one had come after the other."""
    orders = find_orders(act, other)
    for played in play_pairs(act, other, None):
        assert played in orders


@pytest.mark.parametrize(
    ("act", "other", "way"),
    [
        pytest.param(*pair, way, id=f"{'-'.join(pair)}-{way}", marks=[pytest.mark.slow] if number % 6 != turn else [])
        for number, pair in enumerate(PAIRS)
        for turn, way in ((0, WAYS[1]), (3, WAYS[2]))
    ],
)
def test_an_act_in_doubt_while_another_process_acts(act: str, other: str, way: Way) -> None:
    """A write in doubt that another process overtakes was made if it says so, and not made if it says ``none``."""
    orders, alone = find_orders(act, other), Scene()
    before, told, after = alone.look(), alone.act(other, by_witness=True), alone.look()
    alone.close()
    for answer, told_other, seen in play_pairs(act, other, way):
        if answer == "none":
            assert seen == (after if told_other == told else before)
        elif answer == "unknown":
            assert (told_other, seen) in [(told, after), *((second, found) for _, second, found in orders)]
        elif act in REMOVALS and told_other == told:
            assert seen in [found for _, _, found in orders]
        else:
            assert (answer, told_other, seen) in orders
