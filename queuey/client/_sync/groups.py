# Do not edit: python deploy/unasync.py writes this file from queuey/client/_async/groups.py.
"""Consumer groups whose partitions the service divides among members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from queuey.api.groups import GroupInfo, Heartbeat, HeartbeatAnswer, Joined, NewMember, PartitionCommit
from queuey.client.calls import group_calls, progress_calls
from queuey.client.calls.call import Seconds, seconds

if TYPE_CHECKING:
    from queuey.client._sync.sender import Sender


class ConsumerGroups:
    """The consumer groups of an application whose partitions the service divides among members.

    Get it from :attr:`Client.consumer_groups <queuey.client.Client.consumer_groups>`.
    Safe to use from several threads.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     groups = client.consumer_groups
        ...     member = groups.join("shipping", ["orders"])
        ...     print("shipping" in groups.names(), len((groups.show("shipping")).members))
        ...     member.leave()
        True 1
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def join(
        self,
        group: str,
        queues: Iterable[str] = (),
        patterns: Iterable[str] = (),
        *,
        instance: str = "",
        session: Seconds = 10,
        revoke: Seconds = 30,
        grace: Seconds = 0,
        name: str = "",
    ) -> GroupMember:
        """Joins a group. Sent once, as the time of the session counts from the moment before the call.

        Args:
            group: The group.
            queues: Names of queues, which need not exist yet.
            patterns: Shell patterns for names of queues.
            instance: Name of a static member. When it joins again, it gets the partitions that it had.
            session: Seconds without a heartbeat after which the member loses its partitions.
            revoke: Max seconds in which the member must give partitions back.
            grace: Seconds for which an absent instance keeps its partitions.
            name: Name that people read, such as host and process. It need not be unique.

        Raises:
            NotAllowed: The right to read or to claim is missing, or the credential is not a key or a role of the
                application.
            GroupElsewhere: The group is served in another data centre.
        """
        times = seconds(session), seconds(revoke), seconds(grace)
        member = NewMember(list(queues), list(patterns), instance, *times, name)
        return GroupMember(group, self._sender.once.run(group_calls.join(group, member)), self._sender)

    def show(self, group: str, *, lag: bool = False) -> GroupInfo:
        """Returns a group: its members, and the partitions that each owns.

        Args:
            group: The group.
            lag: Also count the messages behind each offset.

        Raises:
            GroupNotFound: No member has ever joined the group.
        """
        page = self._sender.run(group_calls.show(group, "", lag=lag))
        queues = dict(page.queues)
        while page.next is not None:
            page = self._sender.run(group_calls.show(group, page.next, lag=lag))
            queues |= page.queues
        return structs.replace(page, queues=queues)

    def names(self) -> tuple[str, ...]:
        """Lists the names of all groups, in order."""
        names: list[str] = []
        start: str | None = ""
        while start is not None:
            page = self._sender.run(group_calls.names(start))
            names += page.groups
            start = page.next
        return tuple(names)

    def forget(self, group: str, *, force: bool = False) -> None:
        """Deletes the members and the plan of a group. Its offsets stay.

        Args:
            group: The group.
            force: Delete it even if it has members. They lose their partitions, and may join again.

        Raises:
            GroupActive: The group has members.
        """
        self._sender.run(group_calls.forget(group, force=force))

    def remove_member(self, group: str, number: int) -> None:
        """Removes a member, whose partitions go to the others. It may join again while its key is valid.

        Args:
            group: The group.
            number: Public number of the member, as in :meth:`show`.

        Raises:
            MemberGone: The group does not have the member.
        """
        self._sender.run(group_calls.remove_member(group, number))


class MemberAccess(NamedTuple):
    """What another process needs to send a member's heartbeats.

    Attributes:
        urls: Heartbeat URLs, one for each server.
        authorization: The ``Authorization`` header, or None without a credential.
        ca: File of certificate authorities, or None for the system's.
    """

    urls: tuple[str, ...]
    authorization: str | None
    ca: str | None


class GroupMember:
    """A member of a consumer group. Safe to use from several threads.

    It does not send heartbeats by itself. A Qdo consumer does.

    Example:
        >>> from queuey.api.groups import Heartbeat
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     member = client.consumer_groups.join("billing", ["orders"])
        ...     answer = member.heartbeat(Heartbeat(wait=3))
        ...     print(sorted(answer.take["orders"]))
        ...     member.leave()
        [1]

    Attributes:
        group: The group's name.
        joined: The service's answer to the join; ``joined.member`` is the member's id, a secret.
    """

    def __init__(self, group: str, joined: Joined, sender: Sender) -> None:
        self.group = group
        self.joined = joined
        self._sender = sender

    def heartbeat(self, beat: Heartbeat | None = None, *, within: float | None = None) -> HeartbeatAnswer:
        """Reports which partitions the member owns and gives back. The answer assigns partitions.

        Args:
            beat: What the member owns, by default nothing. With ``wait``, the answer is held until there is something
                to do, for at most that many seconds.
            within: Max seconds for all attempts.

        Raises:
            MemberGone: The member has lost all its partitions. Join again.
        """
        call = group_calls.heartbeat(self.group, self.joined.member, beat or Heartbeat())
        return self._sender.run(call, within)

    def access(self) -> MemberAccess | None:
        """Returns what another process needs to send this member's heartbeats.

        Returns None if the client uses a custom transport or SSL context, or does not check certificates.

        Raises:
            TokenError: The function, file or program gave no token.
        """
        verify = self._sender.verify
        if not isinstance(verify, bool | str | Path) or verify is False:
            return None
        call = group_calls.heartbeat(self.group, self.joined.member, Heartbeat())
        urls = tuple(server.base + call.path for server in self._sender.servers)
        return MemberAccess(urls, self._sender.authorization.header(), None if verify is True else str(verify))

    def commit(
        self, queue: str, commits: Mapping[int, PartitionCommit], *, within: float | None = None
    ) -> dict[int, str | None]:
        """Records offsets of partitions that the member owns. Each commit names the epoch in which it read.

        Returns:
            The offsets that are recorded now, by partition.

        Raises:
            NotOwner: The member does not own some of the partitions. The offsets of all others were recorded.
            MemberGone: The member has lost all its partitions.
        """
        call = progress_calls.commit_as_member(queue, self.group, self.joined.member, commits)
        return self._sender.run(call, within)

    def leave(self, *, returns: bool = False, within: float | None = None) -> None:
        """Leaves the group.

        Args:
            returns: The instance will come back. Its partitions stay reserved for its grace period.
            within: Max seconds for all attempts.

        Raises:
            MemberGone: The membership had already ended.
        """
        self._sender.run(group_calls.leave(self.group, self.joined.member, returns=returns), within)
