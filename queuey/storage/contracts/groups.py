"""The contract of consumer groups: their state, their members' sessions, and the owners of partitions.

Times are milliseconds since 1970 by the clock of claims
(:meth:`~queuey.storage.contracts.claim_logs.ClaimLogs.claim_now`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from queuey.groups.ownership import GroupSessions, SeenMember

if TYPE_CHECKING:
    from queuey.groups.ownership import ClockSample
    from queuey.groups.state import GroupChange, Head, StoredGroup


def session_ttl(session: int) -> int:
    """Returns the time (ms) for which a session is kept after it was renewed."""
    return 2 * session + 3_600_000


SEARCH = 0, 0
"""Member and uid of the row that says when queues were searched; it is kept for ``SEARCH_TTL`` ms."""
SEARCH_TTL = 86_400_000


def sessions_of(clock: int, rows: Iterable[tuple[int, int, int]]) -> GroupSessions:
    """Returns sessions by their rows.

    Args:
        clock: Sampled before they were read (ms).
        rows: The number of a member; the uid of a queue that it is asked about, 0 in the row of its session; and when
            it was asked or seen (ms).
    """
    times = {(member, uid): when for member, uid, when in rows}
    searched = times.pop(SEARCH, 0)
    uids: dict[int, set[int]] = {member: set() for member, _ in times}
    for member, uid in times:
        uids[member] |= {uid} - {0}
    members = {number: SeenMember(times.get((number, 0), 0), frozenset(others)) for number, others in uids.items()}
    return GroupSessions(clock, searched, members)


class ConsumerGroups(ABC):
    """Consumer groups of applications, by name. Their offsets are in :class:`~queuey.storage.Offsets`.

    State and owners are changed by compare-and-set alone, sessions by plain writes.
    """

    @property
    def centre(self) -> str:
        """The data centre of this process; blank: the store has none."""
        return ""

    @abstractmethod
    def groups_refusal(self) -> str | None:
        """Returns why groups cannot have members on this store as it is configured, None if they can.

        Times at which members were seen have to be at every process that decides by them, and a group's changes in one
        order over all data centres. Never blocks.

        Raises:
            StoreUnavailable: The backend was not reached yet, so its data centres are not known.
        """

    @abstractmethod
    async def group_head(self, application: str, name: str, *, serial: bool = False) -> Head | None:
        """Returns the head of a group, None if the group does not exist.

        ``serial``: after every change that was ever acknowledged, in whatever data centre.
        """

    @abstractmethod
    async def group_state(self, application: str, name: str) -> StoredGroup | None:
        """Returns head and rows of one moment, None if the group does not exist."""

    @abstractmethod
    async def change_group(self, application: str, name: str, version: int, change: GroupChange) -> Head | None:
        """Writes head and rows if the head has a version; 0: there is no group yet. All or nothing.

        Returns the head with its new version, which never comes back, or None if another call was faster, and nothing
        was written.

        Raises:
            StoreUnavailable: See its ``outcome``. With ``unknown`` the caller reads the state again.
        """

    @abstractmethod
    async def remove_group(self, application: str, name: str, version: int) -> bool:
        """Removes head and rows, if the head has a version. Offsets stay."""

    @abstractmethod
    async def group_names(self, application: str, *, start: str = "", limit: int = 100) -> list[str]:
        """Lists the groups of an application by name, ``start`` inclusive."""

    @abstractmethod
    async def renew_session(self, application: str, name: str, member: int, session: int) -> int:
        """Records that a member was seen now, for a session (ms); returns that time (ms).

        It is at a quorum when this returns. An earlier time never takes the place of a later one.

        Raises:
            StoreUnavailable: It may have been recorded; or the clock is not sound, and it was not.
        """

    @abstractmethod
    def sample_clock(self) -> ClockSample:
        """Samples the clock, for :meth:`confirm_clock`. Never blocks.

        Raises:
            StoreUnavailable: The clock is not sound.
        """

    @abstractmethod
    async def confirm_clock(self, sample: ClockSample) -> None:
        """Makes sure, by a check that begins now, that the clock was not behind at a moment before, or since.

        Raises:
            StoreUnavailable: It was, or that is not known.
        """

    @abstractmethod
    async def group_sessions(self, application: str, name: str) -> GroupSessions:
        """Samples the clock, then reads the sessions of a group.

        Raises:
            StoreUnavailable: Also if the clock is not sound.
        """

    @abstractmethod
    async def ask_member(self, application: str, name: str, member: int, uid: int, session: int) -> None:
        """Notes for a member, for a session (ms), that partitions of a queue are wanted that it did not name."""

    @abstractmethod
    async def note_search(self, application: str, name: str, when: int) -> None:
        """Records when queues were last searched (ms)."""
