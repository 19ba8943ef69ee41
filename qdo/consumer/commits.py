"""Records how far partitions were processed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from qdo.consumer.mirror import Mirror
from qdo.consumer.tracks import Track, check_commit
from qdo.errors import CoordinationLost, NotOwner
from qdo.partitions import Partition
from queuey.client import order_of

Record = Callable[[Mapping[Partition, str]], Awaitable[frozenset[Partition]]]
"""Records offsets with the group; returns those that were not, as they are no longer this member's."""


class Commits:
    """Checks commits and passes them on.

    Args:
        tracks: What this member owns.
        record: Where they go.
        mirror: Where they go too, if anywhere.
    """

    def __init__(self, tracks: Mapping[Partition, Track], record: Record, mirror: Mirror | None) -> None:
        self._tracks = tracks
        self._record = record
        self._mirror = mirror
        self._recording: dict[Partition, tuple[str, asyncio.Future[frozenset[Partition]]]] = {}

    async def handed_out(self) -> None:
        """Commits everything that was handed out; see :meth:`given`."""
        tracks = self._tracks.values()
        await self.given({track.partition: track.position for track in tracks if track.position is not None})

    async def settled(self, partitions: Iterable[Partition] | None = None) -> None:
        """Commits everything that counts as processed, of some partitions or of all; see :meth:`given`."""
        tracks = [self._tracks[p] for p in self._tracks.keys() & (self._tracks if partitions is None else partitions)]
        await self.given(
            {t.partition: t.settled for t in tracks if t.settled is not None and not _behind(t, t.settled)}
        )

    async def given(self, offsets: Mapping[Partition, str]) -> None:
        """Commits some ids. Those that are recorded already cost nothing.

        Raises:
            InvalidArgument: One of them cannot be committed; none was.
            NotOwner: Some partitions are no longer this member's; for the others it was recorded.
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        lost = {partition for partition in offsets if partition not in self._tracks}
        # Many revocations at once may each commit everything: what is being recorded already is waited for.
        under_way = {partition for partition, offset in offsets.items() if self._under_way(partition, offset)} - lost
        waits = {self._recording[partition][1] for partition in under_way}
        new = [
            partition
            for partition, offset in offsets.items()
            if partition not in lost and partition not in under_way and check_commit(self._tracks[partition], offset)
        ]
        if new:
            lost |= await self._commit({partition: offsets[partition] for partition in new})
        for wait in waits:
            lost |= await asyncio.shield(wait) & under_way
        if lost:
            names = ", ".join(str(partition) for partition in sorted(lost)[:5])
            more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""  # noqa: PLR2004 - as many as were named
            raise NotOwner(f"no longer this member's: {names}{more}", frozenset(lost))

    def _under_way(self, partition: Partition, offset: str) -> bool:
        return partition in self._recording and self._recording[partition][0] == offset

    async def _commit(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        """Records offsets, and tells those who wait for the same; returns the partitions that are lost."""
        end: asyncio.Future[frozenset[Partition]] = asyncio.get_running_loop().create_future()
        end.add_done_callback(_looked_at)
        entries = {partition: (offset, end) for partition, offset in offsets.items()}
        self._recording |= entries
        try:
            lost = await self._record_all(offsets)
        except BaseException as error:
            end.set_exception(error if isinstance(error, Exception) else CoordinationLost("the commit was broken off"))
            raise
        finally:
            for partition, entry in entries.items():
                if self._recording.get(partition) is entry:
                    del self._recording[partition]
        end.set_result(lost)
        return lost

    async def _record_all(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        tracks = {partition: self._tracks[partition] for partition in offsets}
        back = {partition for partition, track in tracks.items() if track.sought}
        for partition, track in tracks.items():
            track.floor = offsets[partition]
            track.sought = False
        try:
            lost = await self._record(offsets)
        except BaseException:
            # Recorded or not: who went back may have to do so again.
            for partition in back:
                tracks[partition].sought = True
            raise
        recorded = {partition: offset for partition, offset in offsets.items() if partition not in lost}
        for partition, offset in recorded.items():
            tracks[partition].committed = offset
        if self._mirror is not None:
            self._mirror.record({partition: offset for partition, offset in recorded.items() if partition not in back})
            self._mirror.record({partition: recorded[partition] for partition in back & recorded.keys()}, back=True)
        return lost


def _looked_at(end: asyncio.Future[frozenset[Partition]]) -> None:
    """Spares a warning when a commit failed and nobody else waited for it."""
    end.exception()


def _behind(track: Track, identifier: str) -> bool:
    """Tells whether somebody committed more than this already."""
    return track.floor is not None and not track.sought and order_of(identifier) < order_of(track.floor)
