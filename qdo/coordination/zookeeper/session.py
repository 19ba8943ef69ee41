"""A member's stay in a group kept by ZooKeeper: one link, and what lies under the group while it is connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from qdo.coordination import Event, Held, Listen, Member, Session, Target, Versioned
from qdo.coordination.encoding import encode_member, encode_target
from qdo.coordination.zookeeper.changes import ANY, NODE_LIMIT, Change, Create, Done, Refused, Rounds, Set
from qdo.coordination.zookeeper.driver import Link, State
from qdo.coordination.zookeeper.ownership import Ownership
from qdo.coordination.zookeeper.roster import Aim, Roster
from qdo.coordination.zookeeper.tree import Tree
from qdo.coordination.zookeeper.writing import lacks_parent, make
from qdo.errors import CoordinationLost, InvalidArgument, MemberExists, SessionLost
from qdo.partitions import Partition, Queue

EVENTS: Mapping[State, Event] = {"connected": "connected", "suspended": "suspended", "lost": "lost"}


class ZooKeeperSession(Session):
    """See the contract.

    Args:
        link: Open; the session ends with it and it with the session.
        tree: The group's paths.
        member: Who it is.
        listen: Told of events.
    """

    def __init__(self, link: Link, tree: Tree, member: Member, listen: Listen) -> None:
        self.link = link
        self._tree = tree
        self._member = member
        self._listen = listen
        self._roster = Roster(link, tree)
        self._aim = Aim(link, tree.target)
        self._ownership = Ownership(link, tree, member.id)
        self._over = False

    async def join(self) -> None:
        """Makes the member's node.

        Raises:
            MemberExists: Another session has made it.
            CoordinationLost, CoordinationRefused
        """
        wish: Change = (Create(self._tree.member(self._member.id), self._value(), ephemeral=True),)
        rounds = Rounds("the group")
        while rounds:
            (outcome,) = await self.link.apply([wish])
            if isinstance(outcome, Done):
                break
            if outcome.why is Refused.NODE_EXISTS:
                raise MemberExists(f"group {self._tree.group!r} has a live member {self._member.id!r}")
            if lacks_parent(outcome):
                await make(self.link, [self._tree.members])
        if self.link.state != "connected":
            raise CoordinationLost("the connection to ZooKeeper broke")
        self.link.on_state = self._on_state
        self.link.on_watch = self._on_watch

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See the contract."""
        state = self.link.state
        return "lost" if state == "new" else state

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        members = await self._roster.members()
        if self._member.id not in members:
            raise self._removed()
        return members

    async def target(self) -> Versioned:
        """See the contract."""
        return await self._aim.read()

    async def set_target(self, target: Target, version: int) -> bool:
        """See the contract."""
        data = encode_target(target)
        if len(data) > NODE_LIMIT:
            raise InvalidArgument(f"a target of {len(target.owners)} partitions is too large for one node")
        path = self._tree.target
        wish = Create(path, data) if version == ANY else Set(path, data, version)
        (outcome,) = await self.link.apply([(wish,)])
        return isinstance(outcome, Done)

    async def update(self, queues: Mapping[Queue, int]) -> None:
        """See the contract."""
        self._member = msgspec.structs.replace(self._member, queues=dict(queues))
        (outcome,) = await self.link.apply([(Set(self._tree.member(self._member.id), self._value(), ANY),)])
        if not isinstance(outcome, Done):
            raise self._removed()

    async def take(self, partitions: Iterable[Partition]) -> dict[Partition, Held]:
        """See the contract."""
        return await self._ownership.take(partitions)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""
        await self._ownership.release(partitions)

    async def commit(self, offsets: Iterable[tuple[Held, str]]) -> dict[Partition, Held | None]:
        """See the contract."""
        return await self._ownership.commit(offsets)

    async def leave(self) -> None:
        """See the contract."""
        self._over = True
        await self.link.close()

    def _value(self) -> bytes:
        value = encode_member(self._member)
        if len(value) > NODE_LIMIT:
            raise InvalidArgument(f"a member with {len(self._member.queues)} queues is too large for one node")
        return value

    def _removed(self) -> SessionLost:
        """Ends the session, because somebody removed its node: whom the others do not see is no member."""
        gone = SessionLost("the member was removed from the group")
        self.link.end(gone)
        return gone

    def _on_state(self, state: State) -> None:
        self._tell(EVENTS[state])
        if state == "connected":
            # What was watched is watched no more.
            self._roster.forget()
            self._aim.forget()
            self._ownership.forget()
            self._tell("changed")

    def _on_watch(self, paths: list[str]) -> None:
        self._roster.hear(paths)
        self._aim.hear(paths)
        self._ownership.hear(paths)
        self._tell("changed")

    def _tell(self, event: Event) -> None:
        if not self._over:
            self._over = event == "lost"
            self._listen(event)
