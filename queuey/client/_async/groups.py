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
    from queuey.client._async.sender import AsyncSender


class AsyncConsumerGroups:
    """The consumer groups of an application whose partitions the service divides among members.

    It is :attr:`AsyncClient.consumer_groups <queuey.client.AsyncClient.consumer_groups>`. For async code, in one event
    loop.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         groups = client.consumer_groups
        ...         member = await groups.join("shipping", ["orders"])
        ...         print("shipping" in await groups.names(), len((await groups.show("shipping")).members))
        ...         await member.leave()
        >>> asyncio.run(main())
        True 1
    """

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def join(
        self,
        group: str,
        queues: Iterable[str] = (),
        patterns: Iterable[str] = (),
        *,
        instance: str = "",
        session: Seconds = 10,
        revoke: Seconds = 30,
        grace: Seconds = 0,
    ) -> AsyncGroupMember:
        """Joins a group.

        Args:
            group: The group.
            queues: Names of queues, which need not exist yet.
            patterns: Shell patterns of queues' names.
            instance: Name of a static member: when it joins again, it gets the partitions that it had.
            session: Time without a heartbeat after which the member has lost its partitions.
            revoke: Time in which it gives partitions back.
            grace: Time for which an instance that is away keeps its partitions.

        Raises:
            NotAllowed: The right to read or to claim is missing.
            InstanceTaken: Another credential is a member with this instance name.
            GroupElsewhere: The group is served in another data centre.
        """
        wish = NewMember(list(queues), list(patterns), instance, seconds(session), seconds(revoke), seconds(grace))
        return AsyncGroupMember(group, await self._sender.run(group_calls.join(group, wish)), self._sender)

    async def show(self, group: str, *, lag: bool = False) -> GroupInfo:
        """Returns a group: its members, and who owns what.

        Args:
            group: The group.
            lag: Also count the messages behind each offset.

        Raises:
            GroupNotFound: No member ever joined it.
        """
        page = await self._sender.run(group_calls.show(group, "", lag=lag))
        queues = dict(page.queues)
        while page.next is not None:
            page = await self._sender.run(group_calls.show(group, page.next, lag=lag))
            queues |= page.queues
        return structs.replace(page, queues=queues)

    async def names(self) -> tuple[str, ...]:
        """Lists groups by name."""
        names: list[str] = []
        start: str | None = ""
        while start is not None:
            page = await self._sender.run(group_calls.names(start))
            names += page.groups
            start = page.next
        return tuple(names)

    async def forget(self, group: str) -> None:
        """Forgets the members and the plan of a group; its offsets stay.

        Raises:
            GroupActive: It has members.
        """
        await self._sender.run(group_calls.forget(group))


class MemberAccess(NamedTuple):
    """How the heartbeats of a member reach the service.

    Attributes:
        urls: Of each server.
        authorization: The header, or None without a credential.
        ca: File of the authorities that certificates are checked by, or None for the system's.
    """

    urls: tuple[str, ...]
    authorization: str | None
    ca: str | None


class AsyncGroupMember:
    """A member of a consumer group. For async code, in one event loop.

    It sends what it is told to, and keeps no heartbeat going by itself; a consumer of Qdo does both.

    Example:
        >>> import asyncio
        >>> from queuey.api.groups import Heartbeat
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         member = await client.consumer_groups.join("billing", ["orders"])
        ...         answer = await member.heartbeat(Heartbeat(wait=3))
        ...         print(sorted(answer.take["orders"]))
        ...         await member.leave()
        >>> asyncio.run(main())
        [1]

    Attributes:
        group: The group's name.
        joined: The service's answer to the join; ``joined.member`` is the member's id, a secret.
    """

    def __init__(self, group: str, joined: Joined, sender: AsyncSender) -> None:
        self.group = group
        self.joined = joined
        self._sender = sender

    async def heartbeat(self, beat: Heartbeat | None = None, *, within: float | None = None) -> HeartbeatAnswer:
        """Says what the member owns and gives back, and returns what it has to do.

        Args:
            beat: What it owns, by default nothing. With its ``wait`` the answer comes when there is something to do.
            within: Max seconds for all attempts.

        Raises:
            MemberGone: It has lost all partitions: join again.
        """
        call = group_calls.heartbeat(self.group, self.joined.member, beat or Heartbeat())
        return await self._sender.run(call, within)

    async def access(self) -> MemberAccess | None:
        """Returns how another process can send heartbeats of this member, or None if it cannot.

        Raises:
            TokenError: The source gave no token.
        """
        verify = self._sender.verify
        if not isinstance(verify, bool | str | Path) or verify is False:
            return None
        call = group_calls.heartbeat(self.group, self.joined.member, Heartbeat())
        urls = tuple(server.base + call.path for server in self._sender.servers)
        return MemberAccess(urls, await self._sender.authorization.header(), None if verify is True else str(verify))

    async def commit(
        self, queue: str, commits: Mapping[int, PartitionCommit], *, within: float | None = None
    ) -> dict[int, str | None]:
        """Records offsets of partitions that it owns; each commit names the epoch under which was read.

        Returns:
            What is recorded now.

        Raises:
            NotOwner: It does not own some of the partitions; all others were recorded.
            MemberGone: It has lost all partitions.
        """
        call = progress_calls.commit_as_member(queue, self.group, self.joined.member, commits)
        return await self._sender.run(call, within)

    async def leave(self, *, returns: bool = False, within: float | None = None) -> None:
        """Leaves the group.

        Args:
            returns: Its instance comes back: the partitions stay with it for its grace.
            within: Max seconds for all attempts.

        Raises:
            MemberGone: The membership had ended before.
        """
        await self._sender.run(group_calls.leave(self.group, self.joined.member, returns=returns), within)
