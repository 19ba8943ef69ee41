"""Records how far partitions were processed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from qdo.consumer.mirror import Mirror
from qdo.consumer.tracks import Track, check_commit
from qdo.errors import NotOwner
from qdo.partitions import Partition

Record = Callable[[Mapping[Partition, str]], Awaitable[frozenset[Partition]]]
"""Records offsets with the group; returns those that were not, as they are no longer this member's."""
_NAMED = 5
"""Partitions that an error names."""


class Commits:
    """Checks commits and passes them on.

    Args:
        track: Returns where a partition stands that is this member's.
        record: Where they go.
        mirror: Where they go too, if anywhere.
    """

    def __init__(self, track: Callable[[Partition], Track | None], record: Record, mirror: Mirror | None) -> None:
        self._track = track
        self._record = record
        self._mirror = mirror

    async def given(self, offsets: Mapping[Partition, str], *, back: bool = False) -> None:
        """Commits some ids. Those that are recorded already cost nothing.

        Args:
            offsets: The ids.
            back: They may lie before what was committed.

        Raises:
            InvalidArgument: One of them cannot be committed; none was.
            NotOwner: Some partitions are no longer this member's; for the others it was recorded.
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        tracks = {partition: track for partition in offsets if (track := self._track(partition)) is not None}
        lost = frozenset(offsets.keys() - tracks.keys())
        new = {each: offsets[each] for each, track in tracks.items() if check_commit(track, offsets[each], back=back)}
        if new:
            lost |= await self._commit(new, {each: tracks[each] for each in new}, back=back)
        if lost:
            names = ", ".join(str(partition) for partition in sorted(lost)[:_NAMED])
            more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            raise NotOwner(f"no longer this member's: {names}{more}", lost)

    async def _commit(
        self, offsets: Mapping[Partition, str], tracks: Mapping[Partition, Track], *, back: bool
    ) -> frozenset[Partition]:
        going_back = {partition for partition, track in tracks.items() if back or track.sought}
        sought = [track for track in tracks.values() if track.sought]
        for track in sought:
            track.sought = False
        try:
            lost = await self._record(offsets)
        except BaseException:
            # Recorded or not: who went back may have to do so again.
            for track in sought:
                track.sought = True
            raise
        if self._mirror is not None:
            recorded = offsets.keys() - lost
            self._mirror.record({partition: offsets[partition] for partition in recorded - going_back})
            self._mirror.record({partition: offsets[partition] for partition in recorded & going_back}, back=True)
        return lost
