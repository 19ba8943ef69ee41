"""Use cases of consumer groups whose partitions the service divides; ``docs/architecture-groups.md`` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from queuey.api.groups import GroupInfo, GroupNames, Heartbeat, HeartbeatAnswer, Joined
from queuey.api.progress import RecordedOffsets
from queuey.groups.drafts import Rights
from queuey.groups.state import Credential, JoinRequest
from queuey.messages import OffsetChange, Queue
from queuey.service.core import Core
from queuey.service.queue_access import QueueAccess
from queuey.service.watching import Waiter
from queuey.storage import Store


class GroupUseCases:
    """Joins, heartbeats, commits and views of groups.

    Args:
        store: Its owner closes it.
        core: The loop and the clock.

    Attributes:
        rights: Set by the server before the first request: a credential with its rights as they are now.
    """

    rights: Rights

    def __init__(self, store: Store, core: Core) -> None:
        self._store = store
        self._core = core

    async def join(self, application: str, group: str, request: JoinRequest) -> Joined:
        """Joins.

        Raises:
            InvalidRequest, TooManyGroups, TooManyMembers, InstanceTaken, GroupElsewhere, StoreUnavailable.
        """
        raise NotImplementedError

    async def heartbeat(
        self,
        application: str,
        group: str,
        member: str,
        credential: Credential,
        beat: Heartbeat,
        waiter: Waiter | None = None,
        *,
        last: bool = False,
    ) -> HeartbeatAnswer | None:
        """Renews a session and says what there is to do; None: nothing, and ``waiter`` is woken when that may change.

        Without a waiter, or with ``last``, the answer is never None.

        Raises:
            MemberGone, GroupElsewhere, StoreUnavailable.
        """
        raise NotImplementedError

    async def leave(self, application: str, group: str, member: str, credential: Credential, *, returns: bool) -> None:
        """Leaves; with ``returns`` an instance that comes back within its grace.

        Raises:
            MemberGone, GroupElsewhere, StoreUnavailable.
        """
        raise NotImplementedError

    async def commit(
        self,
        access: QueueAccess,
        group: str,
        member: str,
        credential: Credential,
        changes: Sequence[OffsetChange],
        epochs: Mapping[int, int],
        notes: Mapping[int, bytes | None],
    ) -> RecordedOffsets:
        """Records offsets of partitions that the member owns.

        Raises:
            NotOwner: Those partitions are unchanged, all others are recorded.
            MemberGone, OffsetConflict, InvalidRequest, StoreUnavailable.
        """
        raise NotImplementedError

    async def require_inactive(self, application: str, group: str) -> None:
        """Makes sure that a group has no member whose session is not over, after what was read before this call.

        Raises:
            GroupActive: It has some.
        """
        raise NotImplementedError

    async def show(
        self,
        application: str,
        group: str,
        visible: Callable[[Queue], bool],
        *,
        start: str = "",
        lag: bool = False,
    ) -> GroupInfo:
        """Shows a group: 100 queues a page, 16 with ``lag``.

        Raises:
            GroupNotFound: There is no such group.
        """
        raise NotImplementedError

    async def names(self, application: str, *, start: str = "", limit: int = 100) -> GroupNames:
        """Lists groups by name."""
        raise NotImplementedError

    async def forget(self, application: str, group: str) -> None:
        """Removes a group's state; its offsets stay.

        Raises:
            GroupActive: It has members.
            GroupNotFound: There is no such group.
        """
        raise NotImplementedError

    async def move(self, application: str, group: str, centre: str) -> None:
        """Moves a group to this process's data centre, ``centre``, when the former one is lost.

        Raises:
            GroupNotFound: There is no such group.
            InvalidRequest: It is not the data centre of this process.
        """
        raise NotImplementedError

    def statistics(self) -> dict[str, float]:
        """Returns counters: groups, members, plans, partitions moved by origin, unassigned ones, sessions over."""
        raise NotImplementedError

    async def end(self) -> None:
        """Ends the work in the background."""
        raise NotImplementedError
