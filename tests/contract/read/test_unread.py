"""Read marks: their readers, how they move, and the count of messages above them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.messages import read_marks
from queuey.messages.ranges import OTHER_PARTITIONS
from queuey.messages.read_marks import EVERYTHING, ChangedMark, MarkNews, UnreadCount, make_reader_group
from queuey.model import ids
from queuey.model.errors import Conflict, InvalidRequest, QueueNotFound, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import OffsetChange, Page, Queue, QueueSpec, Slice
from queuey.storage import Messages, OffsetRecords, Store, bridge, offset_changes
from tests.backends import Clock
from tests.contract.samples import append_bodies, call_concurrently, fill_queue, make_queue, new_message
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in

ANN, BOB = "user:x.ann", "user:x.bob"


def access(store: Store, queue: Queue) -> QueueAccess:
    return QueueAccess(store, queue)


def mark(store: Store, queue: Queue, at: Position, reader: str = ANN, *, back: bool = False) -> ChangedMark:
    """Marks a message, and all below it, in all partitions."""
    return bridge.run(
        Service(store).unread.mark(access(store, queue), reader, {OTHER_PARTITIONS: ids.following(at)}, back=back)
    )


def count_unread(store: Store, queues: Sequence[Queue], reader: str = ANN, limit: int = 100) -> list[tuple[int, bool]]:
    unread = bridge.run(Service(store).unread.unread([access(store, queue) for queue in queues], reader, limit))
    assert all(isinstance(each, UnreadCount) for each in unread)
    return [(each.count, each.more) for each in unread if isinstance(each, UnreadCount)]


def test_each_reader_has_a_mark(store: Store, other: Store) -> None:
    """A reader's mark counts for that reader alone, in all processes, and only up to the mark."""
    queue, neighbour = make_queue(store), make_queue(store)
    first, second, _ = append_bodies(store, queue, "a", "b", "c")
    append_bodies(store, neighbour, "a")
    assert count_unread(store, [queue, neighbour]) == [(3, False), (1, False)]
    assert mark(store, queue, second) == ChangedMark({1: second}, 0.0)
    assert count_unread(other, [queue, neighbour]) == [(1, False), (1, False)]
    assert count_unread(other, [queue, neighbour], BOB) == [(3, False), (1, False)]
    assert mark(other, queue, first) == ChangedMark({1: second}, 0.0)
    assert mark(other, queue, first, back=True) == ChangedMark({1: first}, 0.0)
    assert count_unread(store, [queue]) == [(2, False)]


def test_marks_never_go_back(store: Store, other: Store) -> None:
    """The highest of the marks that several devices set at the same moment, in any order, stays."""
    queue = make_queue(store)
    places = append_bodies(store, queue, *(f"{n}" for n in range(12)))
    order = random.Random(7).sample(places[:-1], len(places) - 1)
    call_concurrently(lambda n: mark((store, other)[n % 2], queue, order[n]), range(len(order)))
    assert count_unread(store, [queue]) == [(1, False)]
    assert mark(store, queue, places[0]).marks == {1: places[-2]}


def test_partitions_and_bounds(store: Store) -> None:
    """All partitions count, up to the bound; a higher count is reported as more."""
    queue = make_queue(store, partitions=20)
    for number in (1, 2, 17, 20):
        append_bodies(store, queue, "a", "b", partition=number)
    for limit, expected in ((9, (8, False)), (8, (8, False)), (7, (7, True)), (1, (1, True))):
        assert count_unread(store, [queue], limit=limit) == [expected]
    bridge.run(store.offsets.set_offsets(queue, make_reader_group(ANN), [OffsetChange(17, ids.LAST)]))
    assert count_unread(store, [queue]) == [(6, False)]
    with pytest.raises(InvalidRequest):
        bridge.run(Service(store).unread.mark(access(store, queue), ANN, {21: ids.LAST}))


def test_what_is_gone_does_not_count(store: Store, clock: Clock) -> None:
    """Deleted and expired messages are not unread, and a message that is not due is not yet."""
    queue = make_queue(store)
    places = append_bodies(store, queue, "a", "b", "c")
    append_bodies(store, queue, "short", ttl=10)
    bridge.run(store.messages.append(queue, [new_message("later", delay=50)]))
    assert count_unread(store, [queue]) == [(4, False)]
    bridge.run(store.messages.delete(queue, [(1, places[0])]))
    assert count_unread(store, [queue]) == [(3, False)]
    clock.advance(20)
    assert count_unread(store, [queue]) == [(2, False)]
    clock.advance(40)
    assert count_unread(store, [queue]) == [(3, False)]
    queue = bridge.run(store.catalogue.purge_queue(queue))
    assert count_unread(store, [queue]) == [(0, False)]


def test_no_mark_above_what_reads_show(store: Store, clock: Clock) -> None:
    """A mark at an id that reads do not show yet stays below later messages, which nobody has seen."""
    queue = fill_queue(store, "a")
    [later] = bridge.run(store.messages.append(queue, [new_message("later", delay=100)]))
    marked = mark(store, queue, later)
    assert 60 < marked.pending < 200
    assert marked.marks[1] < later
    assert count_unread(store, [queue]) == [(0, False)]
    append_bodies(store, queue, "between")
    clock.advance(150)
    assert count_unread(store, [queue]) == [(2, False)]
    assert mark(store, queue, later).pending == 0.0
    assert count_unread(store, [queue]) == [(0, False)]


def test_marks_end_with_the_queue(store: Store) -> None:
    """A queue that was deleted and made again has no marks; a missing one gives an error."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "a")
    mark(store, queue, place)
    bridge.run(store.catalogue.delete_queue(queue))
    [unread] = bridge.run(Service(store).unread.unread([access(store, queue)], ANN))
    assert isinstance(unread, QueueNotFound)
    again = make_queue(store, queue.name)
    append_bodies(store, again, "a", "b")
    assert count_unread(store, [again]) == [(2, False)]
    # An outdated row is read again.
    bridge.run(store.catalogue.update_queue(again, QueueSpec(partitions=2)))
    assert count_unread(store, [again]) == [(2, False)]


@pytest.mark.parametrize("change", ["nothing", "purge", "more partitions", "deletion", "the store fails"])
def test_queues_counted_together_count_as_one_by_one(store: Store, other: Store, change: str) -> None:
    """Counts and errors of queues that are read concurrently, as over a network, are those of queues read in turn."""
    queues = [make_queue(store, partitions=number) for number in (1, 1, 3)]
    for queue in queues:
        first, _ = append_bodies(store, queue, "a", "b")
        mark(store, queue, first)
    changes: dict[str, Callable[[Queue], object]] = {
        "nothing": lambda _: None,
        "purge": lambda queue: bridge.run(other.catalogue.purge_queue(queue)),
        "more partitions": lambda queue: bridge.run(other.catalogue.update_queue(queue, QueueSpec(partitions=4))),
        "deletion": lambda queue: bridge.run(other.catalogue.delete_queue(queue)),
    }
    if change in changes:
        changes[change](queues[0])
    results: list[list[object]] = []
    for waits_for_network in (False, True):
        between = InterposedStore(store)
        between.waits_for_network = waits_for_network
        if change not in changes:
            between.instead(Messages.read, refuse_read)
        try:
            counts = bridge.run(Service(between.store).unread.unread([access(store, queue) for queue in queues], ANN))
            results.append([each if isinstance(each, UnreadCount) else type(each) for each in counts])
        except StoreUnavailable as error:
            results.append([str(error)])
    assert results[0] == results[1]


def refuse_read(*_: object) -> None:
    raise StoreUnavailable("no node answers")


def test_readers_are_no_groups(store: Store, other: Store) -> None:
    """Readers are in no list of groups, do not count as groups, and have their own limit."""
    queue = make_queue(store)
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, ids.FIRST)]))
    [place] = append_bodies(store, queue, "a")
    with replace_in(offset_changes, offset_changes.MAX_READERS, 2):
        mark(store, queue, place, ANN)
        mark(other, queue, place, BOB)
        with pytest.raises(Conflict, match="read marks for 2 readers"):
            mark(store, queue, place, "user:x.eve")
        mark(store, queue, place, BOB)
    assert bridge.run(other.offsets.groups(queue)) == ["group"]
    assert bridge.run(Service(other).unread.read_marks([access(other, queue)], BOB)) == [{1: place}]


def test_a_call_reads_so_much(store: Store) -> None:
    """When a call reaches its read limit, it does not count the other queues, and names them; it reads no body."""
    queues = [make_queue(store) for _ in range(read_marks.MAX_CONCURRENT_QUEUES + 2)]
    append_bodies(store, queues[0], *"abc")
    read_slices: list[Slice] = []

    async def read(queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        read_slices.extend(slices)
        return await store.messages.read(queue, slices)

    noted = InterposedStore(store)
    noted.instead(Messages.read, read)
    service = Service(noted.store)
    accesses = [access(store, queue) for queue in queues]
    with replace_in(read_marks, read_marks.MAX_READ_IDS, 4):
        answers = bridge.run(service.unread.unread(accesses, ANN, 2))
    assert answers[0] == UnreadCount({}, 2, more=True, is_final=False)
    assert answers[read_marks.MAX_CONCURRENT_QUEUES :] == [None, None]
    assert None not in bridge.run(service.unread.unread(accesses, ANN, 2))
    assert read_slices
    assert not any(piece.bodies for piece in read_slices)
    assert max(piece.limit for piece in read_slices) == 3


def test_counts_end_at_positions(store: Store) -> None:
    """A count between marks and ends is that of the messages there, in the partitions that have an end."""
    queue, rng = make_queue(store, partitions=4), random.Random(3)
    stored = [
        (number, place) for number in (1, 2, 4) for place in append_bodies(store, queue, *"abcd", partition=number)
    ]
    places = [ids.FIRST, *(place for _, place in stored), ids.LAST]
    reads = [{}, *({number: rng.choice(places) for number in rng.sample(range(1, 5), 2)} for _ in range(11))]
    for marks in reads:
        ends = {number: rng.choice(places) for number in rng.sample(range(1, 5), 2)}
        if rng.random() < 0.5:
            ends[OTHER_PARTITIONS] = rng.choice(places)
        expected = [
            place
            for number, place in stored
            if marks.get(number, ids.FIRST) < place < ends.get(number, ends.get(OTHER_PARTITIONS, ids.FIRST))
        ]
        [unread] = bridge.run(Service(store).unread.count([(access(store, queue), marks, ends)]))
        assert isinstance(unread, UnreadCount)
        assert (unread.marks, unread.count, unread.more) == (marks, len(expected), False)


def test_a_count_says_whether_more_may_become_visible(store: Store) -> None:
    """A count that ends above what reads show is not final: a message below its end may become visible later."""
    queue = make_queue(store, read_delay=100.0)
    [place] = append_bodies(store, queue, "a")
    for end, is_final in ((ids.following(place), False), ((1, ids.LOW_MIN), True)):
        [unread] = bridge.run(Service(store).unread.count([(access(store, queue), {}, {OTHER_PARTITIONS: end})]))
        assert unread == UnreadCount({}, 0, more=False, is_final=is_final)


def test_a_stream_reads_the_marks_that_it_hears_of(store: Store) -> None:
    """A stream of many queues reads only the mark that moved, and all marks when that is due."""
    queues = [make_queue(store) for _ in range(5)]
    [place] = append_bodies(store, queues[3], "a")
    calls: list[int] = []

    def offsets_of_queues(queues: Sequence[Queue], group: str) -> list[dict[int, Position]]:
        calls.append(len(queues))
        return bridge.run(store.offsets.offsets_of_queues(queues, group))

    noted = InterposedStore(store)
    noted.instead(OffsetRecords.offsets_of_queues, offsets_of_queues)
    service, accesses, now = Service(noted.store), [access(store, queue) for queue in queues], [0.0]
    news = MarkNews(service.unread, ANN, lambda _: None, lambda: now[0])

    def told() -> list[tuple[str, int]]:
        due = news.take_due(accesses)
        return (
            [(name, each.count) for name, each in bridge.run(news.read_news(due, lambda _: EVERYTHING))] if due else []
        )

    assert len(told()) == 5
    mark(store, queues[3], place)
    news.request_read(queues[3])
    assert (told(), told()) == ([(queues[3].name, 0)], [])
    with replace_in(read_marks, read_marks.MAX_READ_IDS, 0):
        mark(store, queues[0], place)
        news.request_read(queues[0])
        assert (told(), news.more) == ([], True)
    assert (told(), news.more) == ([(queues[0].name, 0)], False)
    now[0] += news.pause
    assert told() == []
    assert calls == [5, 1, 1, 1, 5]


def test_no_report_while_the_readers_sum_is_right(store: Store) -> None:
    """A reader that adds what the stream sends gets no further count until that sum is wrong."""
    queue = make_queue(store, partitions=2)
    old = append_bodies(store, queue, "a", "b", "c")
    service, accesses = Service(store), [access(store, queue)]
    mark(store, queue, old[0])
    news = MarkNews(service.unread, ANN, lambda _: None, lambda: 0.0)

    def report() -> list[tuple[int, bool]]:
        news.request_read(queue)
        return [
            (each.count, each.more)
            for _, each in bridge.run(news.read_news(news.take_due(accesses), lambda _: EVERYTHING))
        ]

    def send(number: int, count: int) -> list[Position]:
        places = append_bodies(store, queue, *"x" * count, partition=number)
        for page in bridge.run(store.messages.read(queue, [Slice(number, places[0], limit=count)])):
            for message in page.messages:
                news.record_sent(queue.name, message)
        return places

    assert report() == [(2, False)]
    mark(store, queue, (old[-1][0] + 1, 0), BOB)
    first, *_ = send(1, 2)
    send(2, 1)
    assert (report(), report()) == ([], [])
    bridge.run(store.messages.delete(queue, [(1, old[0])]))
    assert report() == []
    bridge.run(store.messages.delete(queue, [(1, first)]))
    assert (report(), report()) == ([(4, False)], [])
    send(1, 100)
    assert (report(), report()) == ([(100, True)], [])
    send(2, 5)
    assert report() == []
    bridge.run(store.offsets.set_offsets(queue, make_reader_group(ANN), [OffsetChange(1, ids.LAST)]))
    assert report() == [(6, False)]
    send(1, 3)
    assert report() == []
