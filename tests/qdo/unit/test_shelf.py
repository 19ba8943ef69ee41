"""Who is next to be handed out, how much each gets, and what counts as handed out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qdo.consumer.batches import Batch
from qdo.consumer.partition_table import Row
from qdo.consumer.shelf import Shelf, share
from qdo.consumer.tracks import Track
from qdo.coordination import Held, Offset
from qdo.partitions import Partition
from tests.qdo.unit.samples import ONE, QUEUE, THREE, TWO, message_id, messages


def opened(partition: Partition) -> Track:
    """Gives a track that may be handed out."""
    track = Track(Row(partition, Held(partition, Offset(), 1)))
    track.place(None)
    track.opened = True
    return track


def filled(*counts: int) -> tuple[Shelf, list[Track]]:
    """Gives a shelf with so many messages of each partition."""
    shelf = Shelf()
    tracks = [opened(Partition(QUEUE, number)) for number in range(1, len(counts) + 1)]
    for track, count in zip(tracks, counts, strict=True):
        shelf.put(track, messages(1, count, track.partition.number))
    return shelf, tracks


def handed(shelf: Shelf, most: int, skip: frozenset[Partition] = frozenset()) -> list[tuple[int, int]]:
    """Hands out, and gives the partitions with the number of messages of each."""
    batches = shelf.hand_out(shelf.take(most, skip))
    return [(batch.partition.number, len(batch.messages)) for batch in batches]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 300))
def test_shares_are_fair_and_leave_nothing(counts: list[int], more: int) -> None:
    """Nobody gets more than it has, all of what may be given is, and who gets less than another has no more."""
    most = len(counts) + more
    shares = share(counts, most)
    assert sum(shares) == min(most, sum(counts))
    assert all(0 < got <= count for got, count in zip(shares, counts, strict=True))
    equal = most // len(counts)
    assert all(got == count for got, count in zip(shares, counts, strict=True) if got < equal)


def test_partitions_take_turns() -> None:
    """Who was handed out goes to the end of the line, so that all come to their turn."""
    shelf, _ = filled(2, 2, 2)
    assert [handed(shelf, 1) for _ in range(6)] == [[(number, 1)] for number in (1, 2, 3, 1, 2, 3)]
    assert handed(shelf, 1) == []


def test_one_partition_may_have_everything() -> None:
    """If others have nothing, or little, one gets what they leave."""
    shelf, _ = filled(1000, 1)
    assert handed(shelf, 500) == [(1, 499), (2, 1)]
    assert handed(shelf, 1000) == [(1, 501)]


def test_those_to_be_skipped_are_left_where_they_are() -> None:
    """They come when they are no longer skipped."""
    shelf, _ = filled(3, 3)
    assert handed(shelf, 10, frozenset([ONE])) == [(2, 3)]
    assert handed(shelf, 10, frozenset([ONE])) == []
    assert handed(shelf, 10) == [(1, 3)]


def test_the_position_moves_when_messages_are_handed_out() -> None:
    """Not when they are merely taken."""
    shelf, (track,) = filled(5)
    taken = shelf.take(3)
    assert track.position is None
    assert shelf.hand_out(taken) == [Batch(ONE, messages(1, 3))]
    assert track.position == message_id(3)


def test_nothing_is_handed_out_of_what_moved_meanwhile() -> None:
    """What was taken before a revocation or a seek is dropped, and its position stays."""
    shelf, (one, two) = filled(5, 5)
    taken = shelf.take(10)
    one._row.state = "revoking"
    shelf.clear(one)
    assert [batch.partition for batch in shelf.hand_out(taken)] == [TWO]
    assert one.position is None
    assert two.position == message_id(5)


def test_what_cannot_be_handed_out_now_is_kept() -> None:
    """A pause, or a session that is suspended, drops nothing."""
    shelf, (one, _) = filled(5, 5)
    taken = shelf.take(10)
    one.paused = True
    assert [batch.partition for batch in shelf.hand_out(taken)] == [TWO]
    one.paused = False
    shelf.refresh(one)
    assert shelf.hand_out(shelf.take(3), stopped=True) == []
    assert shelf.count == 5
    assert shelf.hand_out(shelf.take(10)) == [Batch(ONE, messages(1, 5))]


def test_what_reached_nobody_is_handed_out_again() -> None:
    """A recall undoes the last hand-out alone, and only where nothing moved since."""
    shelf, (one, two) = filled(4, 4)
    shelf.hand_out(shelf.take(2))
    shelf.hand_out(shelf.take(4))
    two._row.state = "revoking"
    shelf.clear(two)
    shelf.recall()
    assert one.position == message_id(1)
    assert shelf.hand_out(shelf.take(10)) == [Batch(ONE, messages(2, 4))]
    shelf.recall()
    shelf.recall()
    assert shelf.hand_out(shelf.take(10)) == [Batch(ONE, messages(2, 4))]


def test_messages_count_as_processed_when_more_is_asked_for() -> None:
    """Except those of partitions that are still being worked on."""
    shelf, (one, two) = filled(4, 4)
    shelf.hand_out(shelf.take(4))
    assert (one.settled, two.settled) == (None, None)
    shelf.settle(skip=[ONE])
    assert (one.settled, two.settled) == (None, message_id(2))
    shelf.settle()
    assert one.settled == message_id(2)


def test_the_sums_are_those_of_the_partitions() -> None:
    """Whatever comes and goes, also by seeking and pausing."""
    shelf, tracks = filled(7, 8, 9)
    shelf.hand_out(shelf.take(11))
    shelf.hand_out(shelf.take(5), stopped=True)
    tracks[1].paused = True
    shelf.refresh(tracks[1])
    shelf.clear(tracks[2])
    shelf.put(tracks[2], messages(20, 24, 3))
    assert shelf.count == sum(track.count for track in tracks)
    assert shelf.size == sum(track.size for track in tracks)
    assert dict(handed(shelf, 100)) == {ONE.number: 2, THREE.number: 5}
