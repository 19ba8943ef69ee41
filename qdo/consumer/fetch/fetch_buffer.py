"""What is held ready, and who is next to be handed out."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from qdo.consumer.batches import Batch, weigh
from qdo.consumer.fetch.fetch_state import FetchState
from qdo.partitions import Partition
from queuey.client import Message


class BufferedSlice(NamedTuple):
    """Messages that were taken from the fetch buffer.

    Attributes:
        fetch_state: Whose.
        turn: The fetch state's when they were taken.
        messages: At least one.
    """

    fetch_state: FetchState
    turn: int
    messages: list[Message]


class FetchBuffer:
    """The messages that are held, of all partitions.

    Attributes:
        count: Messages held, those of paused partitions included.
        size: Bytes of their bodies, about.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._ready: dict[Partition, FetchState] = {}
        self._out: dict[Partition, FetchState] = {}
        self._last: list[tuple[BufferedSlice, str | None]] = []

    def put(self, fetch_state: FetchState, messages: list[Message]) -> None:
        """Takes what was read of a partition."""
        self._weigh(fetch_state, -1)
        fetch_state.push(messages, weigh(messages))
        self._weigh(fetch_state, 1)
        self.refresh(fetch_state)

    def clear(self, fetch_state: FetchState) -> None:
        """Drops what is held of a partition, and what is under way."""
        self._weigh(fetch_state, -1)
        fetch_state.clear()
        self.refresh(fetch_state)

    def refresh(self, fetch_state: FetchState) -> None:
        """Notes that a partition may be handed out now, or may not any more."""
        if fetch_state.live and fetch_state.count:
            self._ready.setdefault(fetch_state.partition, fetch_state)
        elif self._ready.get(fetch_state.partition) is fetch_state:
            del self._ready[fetch_state.partition]

    def take(self, most: int, skip: Collection[Partition] = ()) -> list[BufferedSlice]:
        """Takes up to so many messages, in equal shares of those whose turn it is; what some leave, others get.

        Whoever was given some goes to the end of the line.
        """
        chosen = [fetch_state for partition, fetch_state in self._ready.items() if partition not in skip][:most]
        if not chosen:
            return []
        shares = share([fetch_state.count for fetch_state in chosen], most)
        return [self._take(fetch_state, share) for fetch_state, share in zip(chosen, shares, strict=True)]

    def hand_out(self, taken: list[BufferedSlice], *, stopped: bool = False) -> list[Batch]:
        """Hands out what was taken; from now on it counts as handed out.

        What is not to be handed out any more, because its partition was revoked or moved meanwhile, is dropped. What
        cannot be handed out now, because its partition was paused or everything is stopped, is taken back.
        """
        batches = []
        self._last = []
        for one in taken:
            fetch_state, messages = one.fetch_state, one.messages
            if fetch_state.turn != one.turn:
                continue
            if stopped or not fetch_state.live:
                self._put_back(one)
                continue
            self._last.append((one, fetch_state.position))
            self._out[fetch_state.partition] = fetch_state
            fetch_state.position = messages[-1].id
            batches.append(Batch(fetch_state.partition, messages))
        return batches

    def recall(self) -> None:
        """Takes back what was handed out last, because it did not reach whoever asked for it."""
        last, self._last = self._last, []
        for one, before in last:
            if one.fetch_state.turn == one.turn:
                one.fetch_state.position = before
                self._put_back(one)

    def settle(self, skip: Collection[Partition] = ()) -> None:
        """Counts what was handed out as processed, but for some partitions."""
        for partition in [partition for partition in self._out if partition not in skip]:
            fetch_state = self._out.pop(partition)
            fetch_state.settled = fetch_state.position

    def _take(self, fetch_state: FetchState, share: int) -> BufferedSlice:
        self._weigh(fetch_state, -1)
        messages = fetch_state.take(share)
        self._weigh(fetch_state, 1)
        del self._ready[fetch_state.partition]
        self.refresh(fetch_state)
        return BufferedSlice(fetch_state, fetch_state.turn, messages)

    def _put_back(self, taken: BufferedSlice) -> None:
        self._weigh(taken.fetch_state, -1)
        taken.fetch_state.put_back(taken.messages, weigh(taken.messages))
        self._weigh(taken.fetch_state, 1)
        self.refresh(taken.fetch_state)

    def _weigh(self, fetch_state: FetchState, sign: int) -> None:
        self.count += sign * fetch_state.count
        self.size += sign * fetch_state.size


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
