"""The contract of consumer groups: their state, and the sessions of their members.

Times are milliseconds since 1970 by the store's clock (:class:`~queuey.model.ids.StoreClock`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from queuey.model.groups import GroupSessions, SeenMember

if TYPE_CHECKING:
    from queuey.model.groups import ClockSample, GroupChange, GroupHead, StoredGroup


def session_ttl(session: int) -> int:
    """Returns how long a session is stored after its last renewal (ms)."""
    return 2 * session + 3_600_000


SEARCH_ROW = 0, 0
"""Member and uid of the row with the time of the last search for queues. It is kept for ``SEARCH_TTL`` ms."""
SEARCH_TTL = 86_400_000


def sessions_of(clock: int, rows: Iterable[tuple[int, int, int]]) -> GroupSessions:
    """Builds sessions from their rows. A member with requests but without a session counts as seen at 0.

    Args:
        clock: Clock sampled before the rows were read (ms).
        rows: For each session: member number, 0, and when the member was seen (ms). For each request to give partitions
            back: member number, uid of the queue, and when it was made (ms). The row :data:`SEARCH_ROW` gives
            ``searched``.
    """
    times = {(member, uid): when for member, uid, when in rows}
    searched = times.pop(SEARCH_ROW, 0)
    uids: dict[int, set[int]] = {member: set() for member, _ in times}
    for member, uid in times:
        uids[member] |= {uid} - {0}
    members = {number: SeenMember(times.get((number, 0), 0), frozenset(others)) for number, others in uids.items()}
    return GroupSessions(clock, searched, members)


class GroupRecords(ABC):
    """Consumer groups of applications, by name. Their offsets are in :class:`~queuey.storage.OffsetRecords`.

    State is changed only by compare-and-set, sessions by plain writes.
    """

    @property
    def centre(self) -> str:
        """The data centre of this process; blank if the store does not have data centres."""
        return ""

    @abstractmethod
    def groups_refusal(self) -> str | None:
        """Returns why groups cannot have members with this store's configuration, or None if they can.

        Every process must see when members were last seen, and a group's changes must have one order across all data
        centres. Never blocks.

        Raises:
            StoreUnavailable: The backend has not been reached yet, so its data centres are not known.
        """

    @abstractmethod
    async def group_head(self, application: str, name: str, *, serial: bool = False) -> GroupHead | None:
        """Returns the head of a group, or None if the group does not exist.

        With ``serial`` the read sees every change acknowledged before, in any data centre.
        """

    @abstractmethod
    async def group_state(self, application: str, name: str) -> StoredGroup | None:
        """Returns a consistent snapshot of head and rows, or None if the group does not exist."""

    @abstractmethod
    async def change_group(self, application: str, name: str, version: int, change: GroupChange) -> GroupHead | None:
        """Writes head and rows, all or nothing, if the stored head has ``version`` (0: the group does not exist yet).

        Returns:
            The head with its new version, which is never used again; or None if nothing was written, because the stored
            head has another version.

        Raises:
            StoreUnavailable: See its ``outcome``. With ``unknown`` the caller reads the state again.
        """

    @abstractmethod
    async def remove_group(self, application: str, name: str, version: int) -> bool:
        """Removes head and rows if the stored head has ``version``. Offsets stay. Returns whether it did."""

    @abstractmethod
    async def group_names(
        self, application: str, *, start: str = "", limit: int = 100, creator: bytes | None = None
    ) -> list[str]:
        """Lists the groups of an application by name, from ``start`` (inclusive) on; with ``creator`` only its own."""

    @abstractmethod
    async def renew_session(self, application: str, name: str, member: int, session: int) -> int:
        """Records that a member was seen now. Returns that time (ms).

        A quorum has the time when this returns. An earlier time never replaces a later one.

        Args:
            application: Owner of the group.
            name: Name of the group.
            member: Number of the member.
            session: Session timeout (ms); it decides how long the row is kept.

        Raises:
            StoreUnavailable: The time may have been recorded. If the clock is not sound, it was not.
        """

    @abstractmethod
    def sample_clock(self) -> ClockSample:
        """Samples the clock, for :meth:`confirm_clock`. Never blocks.

        Raises:
            StoreUnavailable: The clock is not sound.
        """

    @abstractmethod
    async def confirm_clock(self, sample: ClockSample) -> None:
        """Checks the clock now, to prove that it has not been behind since a sample was taken.

        Raises:
            StoreUnavailable: The clock was behind, or that could not be checked.
        """

    @abstractmethod
    async def group_sessions(self, application: str, name: str) -> GroupSessions:
        """Samples the clock, then reads the sessions of a group.

        Raises:
            StoreUnavailable: The sessions cannot be read, or the clock is not sound.
        """

    @abstractmethod
    async def ask_member(self, application: str, name: str, member: int, uid: int, session: int) -> None:
        """Records a request to a member to give back partitions of a queue.

        Args:
            application: Owner of the group.
            name: Name of the group.
            member: Number of the member.
            uid: Uid of the queue.
            session: How long the request is kept (ms).
        """

    @abstractmethod
    async def record_search(self, application: str, name: str, when: int) -> None:
        """Records when queues were last searched (ms)."""
