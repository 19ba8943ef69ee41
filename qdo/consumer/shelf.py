"""What is held ready, and who is next to be handed out."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from qdo.consumer.batches import Batch, weigh
from qdo.consumer.tracks import Track
from qdo.partitions import Partition
from queuey.client import Message


class Taken(NamedTuple):
    """Messages that were taken from the shelf.

    Attributes:
        track: Whose.
        turn: The track's when they were taken.
        messages: At least one.
    """

    track: Track
    turn: int
    messages: list[Message]


class Shelf:
    """The messages that are held, of all partitions.

    Attributes:
        count: Messages held, those of paused partitions included.
        size: Bytes of their bodies, about.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._ready: dict[Partition, Track] = {}
        self._out: dict[Partition, Track] = {}
        self._last: list[tuple[Taken, str | None]] = []

    def put(self, track: Track, messages: list[Message]) -> None:
        """Takes what was read of a partition."""
        self._weigh(track, -1)
        track.push(messages, weigh(messages))
        self._weigh(track, 1)
        self.refresh(track)

    def clear(self, track: Track) -> None:
        """Drops what is held of a partition, and what is under way."""
        self._weigh(track, -1)
        track.clear()
        self.refresh(track)

    def refresh(self, track: Track) -> None:
        """Notes that a partition may be handed out now, or may not any more."""
        if track.live and track.count:
            self._ready.setdefault(track.partition, track)
        elif self._ready.get(track.partition) is track:
            del self._ready[track.partition]

    def take(self, most: int, skip: Collection[Partition] = ()) -> list[Taken]:
        """Takes up to so many messages, in equal shares of those whose turn it is; what some leave, others get.

        Whoever was given some goes to the end of the line.
        """
        chosen = [track for partition, track in self._ready.items() if partition not in skip][:most]
        if not chosen:
            return []
        shares = share([track.count for track in chosen], most)
        return [self._take(track, share) for track, share in zip(chosen, shares, strict=True)]

    def hand_out(self, taken: list[Taken], *, stopped: bool = False) -> list[Batch]:
        """Hands out what was taken; from now on it counts as handed out.

        What is not to be handed out any more, because its partition was revoked or moved meanwhile, is dropped. What
        cannot be handed out now, because its partition was paused or everything is stopped, is taken back.
        """
        batches = []
        self._last = []
        for one in taken:
            track, messages = one.track, one.messages
            if track.turn != one.turn:
                continue
            if stopped or not track.live:
                self._put_back(one)
                continue
            self._last.append((one, track.position))
            self._out[track.partition] = track
            track.position = messages[-1].id
            batches.append(Batch(track.partition, messages))
        return batches

    def recall(self) -> None:
        """Takes back what was handed out last, because it did not reach whoever asked for it."""
        last, self._last = self._last, []
        for one, before in last:
            if one.track.turn == one.turn:
                one.track.position = before
                self._put_back(one)

    def settle(self, skip: Collection[Partition] = ()) -> None:
        """Counts what was handed out as processed, but for some partitions."""
        for partition in [partition for partition in self._out if partition not in skip]:
            track = self._out.pop(partition)
            track.settled = track.position

    def _take(self, track: Track, share: int) -> Taken:
        self._weigh(track, -1)
        messages = track.take(share)
        self._weigh(track, 1)
        del self._ready[track.partition]
        self.refresh(track)
        return Taken(track, track.turn, messages)

    def _put_back(self, taken: Taken) -> None:
        self._weigh(taken.track, -1)
        taken.track.put_back(taken.messages, weigh(taken.messages))
        self._weigh(taken.track, 1)
        self.refresh(taken.track)

    def _weigh(self, track: Track, sign: int) -> None:
        self.count += sign * track.count
        self.size += sign * track.size


def share(counts: list[int], most: int) -> list[int]:
    """Shares ``most`` out among those who have so many each: equally, and what some cannot use goes to the next.

    Args:
        counts: What each has, at least 1; no more of them than ``most``.
        most: The sum of the shares at most.
    """
    equal = most // len(counts)
    shares = [min(count, equal) for count in counts]
    left = most - sum(shares)
    for index, count in enumerate(counts):
        if not left:
            break
        more = min(left, count - shares[index])
        shares[index] += more
        left -= more
    return shares
