"""A member's session in a group kept by ZooKeeper: one link, and what lies under the group while it is connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from qdo.coordination import Event, Listen, Member, OwnedOffset, Session, TargetAssignment, Versioned
from qdo.coordination.encoding import decode_member, encode_member
from qdo.coordination.zookeeper.batching import lacks_parent, make
from qdo.coordination.zookeeper.driver import Link, State
from qdo.coordination.zookeeper.partition_owners import SessionPartitions
from qdo.coordination.zookeeper.paths import GroupPaths, decode
from qdo.coordination.zookeeper.stored_assignments import OwnAssignment, TargetWriter
from qdo.coordination.zookeeper.transactions import (
    ANY,
    Applied,
    Change,
    Create,
    Delete,
    RejectionReason,
    Rounds,
    SetData,
)
from qdo.coordination.zookeeper.watched import WatchedNodes
from qdo.errors import CoordinationLost, MemberExists, SessionLost
from qdo.partitions import Partition

EVENTS: Mapping[State, Event] = {"connected": "connected", "suspended": "suspended", "lost": "lost"}


class ZooKeeperSession(Session):
    """See the contract.

    Args:
        link: Open; the session ends with it and it with the session.
        group_paths: The group's paths.
        member: Who it is.
        listen: Told of events.
    """

    def __init__(self, link: Link, group_paths: GroupPaths, member: Member, listen: Listen) -> None:
        self.link = link
        self._paths = group_paths
        self._member = member
        self._listen = listen
        self._watching = WatchedNodes(link)
        self._own = OwnAssignment(link, group_paths, member.id, self._watching)
        self._setting = TargetWriter(link, group_paths, self._watching)
        self._ownership = SessionPartitions(link, group_paths, member.id)
        self._over = False

    async def join(self, *, replace: bool = False) -> None:
        """Makes the member's node.

        Args:
            replace: Removes that of another session.

        Raises:
            MemberExists: Another session has made it.
            CoordinationLost, CoordinationRefused
        """
        wish: Change = (Create(self._paths.member(self._member.id), encode_member(self._member), ephemeral=True),)
        rounds = Rounds("the group")
        while rounds:
            (outcome,) = await self.link.apply([wish])
            if isinstance(outcome, Applied):
                break
            if outcome.why is RejectionReason.NODE_EXISTS and replace:
                await self.link.apply([(Delete(wish[0].path),)])
            elif outcome.why is RejectionReason.NODE_EXISTS:
                raise MemberExists(f"group {self._paths.group!r} has a live member {self._member.id!r}")
            if lacks_parent(outcome):
                await make(self.link, [self._paths.members])
        if self.link.state != "connected":
            raise CoordinationLost("the connection to ZooKeeper broke")
        self.link.on_state = self._on_state
        self.link.on_watch = self._on_watch

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See the contract."""
        state = self.link.state
        return "lost" if state == "new" else state

    async def assignment(self) -> frozenset[Partition]:
        """See the contract."""
        mine = await self._watching.node(self._paths.member(self._member.id))
        if mine is None or mine.session != self.link.session:
            raise self._removed()
        return await self._own.read()

    async def lead(self) -> bool:
        """See the contract. The first to come leads, until its session ends."""
        rounds = Rounds("the leader")
        while rounds:
            node = await self._watching.node(self._paths.leader)
            if node is not None:
                return node.session == self.link.session
            if self._member.leaving:
                return False
            await self.link.apply([(Create(self._paths.leader, self._member.id.encode(), ephemeral=True),)])
            self._watching.hear([self._paths.leader])
        raise AssertionError  # rounds end by an error

    async def retire(self) -> None:
        """See the contract."""
        self._member = msgspec.structs.replace(self._member, leaving=True)
        leads = await self.lead()
        await self.link.apply([(SetData(self._paths.member(self._member.id), encode_member(self._member), ANY),)])
        if leads:
            await self.link.apply([(Delete(self._paths.leader),)])

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        nodes = {
            decode(node): f"{self._paths.members}/{node}" for node in await self._watching.children(self._paths.members)
        }
        found = await self._watching.nodes(path for _, path in sorted(nodes.items()))
        members = [decode_member(node.data) for node in found.values() if node is not None]
        return {member.id: member for member in sorted(members, key=lambda member: member.id)}

    async def target(self) -> Versioned:
        """See the contract."""
        return await self._setting.read()

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """See the contract."""
        return await self._setting.set(target, version)

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """See the contract."""
        return await self._ownership.claim(partitions)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""
        await self._ownership.release(partitions)

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """See the contract."""
        return await self._ownership.commit(offsets)

    async def leave(self) -> None:
        """See the contract."""
        self._over = True
        await self.link.close()

    def _removed(self) -> SessionLost:
        """Ends the session, because somebody removed its node: whom the others do not see is no member."""
        gone = SessionLost("the member was removed from the group")
        self.link.end(gone)
        return gone

    def _on_state(self, state: State) -> None:
        self._report(EVENTS[state])
        if state == "connected":
            # What was watched is watched no more.
            for each in (self._watching, self._ownership):
                each.forget()
            self._report("changed")

    def _on_watch(self, paths: list[str]) -> None:
        for each in (self._watching, self._ownership):
            each.hear(paths)
        self._report("changed")

    def _report(self, event: Event) -> None:
        if not self._over:
            self._over = event == "lost"
            self._listen(event)
