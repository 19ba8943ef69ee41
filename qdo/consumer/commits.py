"""Records how far partitions were processed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from qdo.consumer.fetch.fetch_state import FetchState, check_commit
from qdo.consumer.offset_mirror import OffsetMirror
from qdo.errors import NotOwner
from qdo.partitions import Partition

Record = Callable[[Mapping[Partition, str]], Awaitable[frozenset[Partition]]]
"""Records offsets with the group; returns those that were not, as they are no longer this member's."""
_NAMED = 5
"""Partitions that an error names."""


class OffsetCommits:
    """Checks commits and passes them on.

    Args:
        fetch_state: Returns where a partition stands that is this member's.
        record: Where they go.
        mirror: Where they go too, if anywhere.
    """

    def __init__(
        self, fetch_state: Callable[[Partition], FetchState | None], record: Record, mirror: OffsetMirror | None
    ) -> None:
        self._fetch_state = fetch_state
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
        fetch_states = {
            partition: fetch_state for partition in offsets if (fetch_state := self._fetch_state(partition)) is not None
        }
        lost = frozenset(offsets.keys() - fetch_states.keys())
        new = {
            each: offsets[each]
            for each, fetch_state in fetch_states.items()
            if check_commit(fetch_state, offsets[each], back=back)
        }
        if new:
            lost |= await self._commit(new, {each: fetch_states[each] for each in new}, back=back)
        if lost:
            names = ", ".join(str(partition) for partition in sorted(lost)[:_NAMED])
            more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            raise NotOwner(f"no longer this member's: {names}{more}", lost)

    async def _commit(
        self, offsets: Mapping[Partition, str], fetch_states: Mapping[Partition, FetchState], *, back: bool
    ) -> frozenset[Partition]:
        going_back = {partition for partition, fetch_state in fetch_states.items() if back or fetch_state.sought}
        sought = [fetch_state for fetch_state in fetch_states.values() if fetch_state.sought]
        for fetch_state in sought:
            fetch_state.sought = False
        try:
            lost = await self._record(offsets)
        except BaseException:
            # Recorded or not: who went back may have to do so again.
            for fetch_state in sought:
                fetch_state.sought = True
            raise
        if self._mirror is not None:
            recorded = offsets.keys() - lost
            self._mirror.record({partition: offsets[partition] for partition in recorded - going_back})
            self._mirror.record({partition: offsets[partition] for partition in recorded & going_back}, back=True)
        return lost
