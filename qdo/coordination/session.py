"""A member's session in a group: one link to the tree, and the member's nodes under the group while it is connected.

It takes partitions, gives them up, and records how far each was processed.

**Fencing.** Taking is one transaction: make the owner's node, and write the offset's node over with what it holds, at
the version that was read. That raises the version, so a commit at an earlier one is refused. A commit is one
transaction as well: the owner's node is there, and the offset has the version of the taking or of the last commit.
Each part keeps something out:

* the session has ended and the partition has no new owner: there is no owner's node (and nothing is taken from a
  session that has ended, and a link never begins a second one);
* another member has taken it: the version differs;
* the version is known although the partition is another session's: a session commits only what it took itself.

The owner's node alone would not do: only versions of data are compared, and a node that was made anew begins with the
same one.

A request whose answer was lost may have been carried out. Taking the partition again settles it: the node shows its
owner, and the version goes up once more, so that nothing that was sent before can count after it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import starmap
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from qdo.coordination.changes import attempts, lacks_parent, make
from qdo.coordination.paths import GroupPaths, decode
from qdo.coordination.records import (
    CommittedOffset,
    Event,
    Listen,
    Member,
    OwnedOffset,
    Sight,
    TargetAssignment,
    Versioned,
    decode_member,
    decode_offset,
    encode_member,
    encode_offset,
)
from qdo.coordination.stored_assignments import MakeMark, StoredAssignments, new_mark
from qdo.coordination.tree import (
    ANY,
    Applied,
    Change,
    Check,
    Create,
    Delete,
    Link,
    NodeData,
    Rejection,
    RejectionReason,
    SetData,
    State,
)
from qdo.coordination.watched import WatchedNodes
from qdo.errors import CoordinationIncompatible, CoordinationLost, MemberExists, SessionLost
from qdo.partitions import Partition

log = logging.getLogger(__name__)

FEW = 4
"""Max partitions of a queue that are tried at once; of more one request asks first which are owned."""


Standing: TypeAlias = Literal["free", "mine", "owned", "former"]
"""The owner of a partition, as far as a session knows: nobody; this session; another one; or an earlier one of this
member, which a member with the same name may end."""


class Session:
    """A member's session in a group, until it leaves or is lost.

    Args:
        link: Open; the session ends with it and it with the session.
        group_paths: The group's paths.
        member: The member.
        listen: Called with events.
        clock: Returns seconds since 1970, for what is recorded.
        new_mark: Returns text that was never returned before.
    """

    def __init__(
        self,
        link: Link,
        group_paths: GroupPaths,
        member: Member,
        listen: Listen,
        *,
        clock: Callable[[], float] = time.time,
        new_mark: MakeMark = new_mark,
    ) -> None:
        self.link = link
        self._paths = group_paths
        self._member = member
        self._stored = encode_member(member)
        self._listen = listen
        self._watching = WatchedNodes(link)
        self._assignments = StoredAssignments(link, group_paths, member.id, self._watching, new_mark)
        self._clock = clock
        self._owner_path = cache(group_paths.owner)  # of each commit; a session sees few partitions
        self._offset_path = cache(group_paths.offset)
        self._owner = member.id.encode()
        self._held: dict[Partition, OwnedOffset] = {}
        self._refused: set[Partition] = set()
        self._strange: set[Partition] = set()
        self._watched_owners: set[str] = set()
        self._over = False

    async def join(self, *, replace: bool = False) -> None:
        """Makes the member's node.

        Args:
            replace: Removes that of another session.

        Raises:
            MemberExists: Another session has made it.
            CoordinationLost, CoordinationRefused
        """
        wish: Change = (Create(self._paths.member(self._member.id), self._stored, ephemeral=True),)
        for _ in attempts("the group"):
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
            raise CoordinationLost("the connection to the coordination service broke")
        self.link.on_state = self._on_state
        self.link.on_watch = self._on_watch

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See :mod:`qdo.coordination`. A session that has left is lost."""
        state = self.link.state
        return "lost" if state == "new" else state

    async def assignment(self) -> frozenset[Partition]:
        """Returns the partitions that this member is to own. A ``changed`` event follows the next change.

        Costs the same however many members and partitions the group has.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        mine = await self._watching.node(self._paths.member(self._member.id))
        if mine is None or mine.session != self.link.session:
            raise self._removed()
        if mine.data != self._stored:  # A member of this name that was put out has written it since.
            await self._write()
        return await self._assignments.own()

    async def lead(self) -> bool:
        """Returns whether this member sets the target. If no member does, it may start to, unless it has retired.

        At most one live session leads. A ``changed`` event follows when the leader may have changed: only after the
        present one retires or is gone, or a member joins.

        Raises:
            CoordinationLost, SessionLost
        """
        tries = attempts("the leader")
        while True:
            next(tries)
            node = await self._watching.node(self._paths.leader)
            if node is not None:
                return node.session == self.link.session
            if self._member.leaving:
                return False
            await self.link.apply([(Create(self._paths.leader, self._member.id.encode(), ephemeral=True),)])
            self._watching.hear([self._paths.leader])

    def begin_to_leave(self) -> None:
        """It is about to give back everything and to leave. Nobody need know before it retires."""

    async def retire(self) -> None:
        """Announces that this member is leaving and leads no more. It keeps its partitions until it goes.

        Raises:
            CoordinationLost, SessionLost
        """
        self._member = msgspec.structs.replace(self._member, leaving=True)
        leads = await self.lead()
        await self._update(self._member)
        if leads:
            await self.link.apply([(Delete(self._paths.leader),)])

    async def leader(self) -> Member | None:
        """Returns the member that leads, None if none does. A ``changed`` event follows when that or its sight changes.

        Costs the same however many members the group has, on services for many machines.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        node = await self._watching.node(self._paths.leader)
        member = node and await self._watching.node(self._paths.member(node.data.decode()))
        return None if member is None else decode_member(member.data)

    async def set_sight(self, sight: Sight) -> None:
        """Changes what others see of this member.

        Raises:
            CoordinationLost: It was changed or not.
            SessionLost
        """
        await self._update(msgspec.structs.replace(self._member, sight=sight))

    async def _update(self, member: Member) -> None:
        self._member, self._stored = member, encode_member(member)
        await self._write()

    async def _write(self) -> None:
        await self.link.apply([(SetData(self._paths.member(self._member.id), self._stored, ANY),)])

    async def members(self) -> dict[str, Member]:
        """Returns all live members by id, this one among them. A ``changed`` event follows the next change.

        It is for the leader: the cost grows with the number of members.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        nodes = {
            decode(node): f"{self._paths.members}/{node}" for node in await self._watching.children(self._paths.members)
        }
        found = await self._watching.nodes(path for _, path in sorted(nodes.items()))
        members = [decode_member(node.data) for node in found.values() if node is not None]
        return {member.id: member for member in sorted(members, key=lambda member: member.id)}

    async def target(self) -> Versioned:
        """Returns the target. A ``changed`` event follows the next change.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        return await self._assignments.target()

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """Replaces the target, at one instant for all members, if it still has the version; returns whether it did.

        Raises:
            CoordinationLost: It was replaced or not; a part of it never is.
            SessionLost
        """
        return await self._assignments.set_target(target, version)

    async def leave(self) -> None:
        """Gives up whatever it holds and leaves the group. Never raises; idempotent.

        No event follows; the other methods raise ``SessionLost`` from then on.
        """
        self._over = True
        await self.link.close()

    def _removed(self) -> SessionLost:
        """Ends the session, because its node was removed: other members do not see it any more."""
        gone = SessionLost("the member was removed from the group")
        self.link.end(gone)
        return gone

    def _on_state(self, state: State) -> None:
        if state != "new":  # which none comes back to
            self._report(state)
        if state == "connected":
            # The service watches nothing of it any more.
            self._watching.forget()
            self._watched_owners.clear()
            self._report("changed")

    def _on_watch(self, paths: list[str]) -> None:
        self._watching.hear(paths)
        self._watched_owners.difference_update(paths)
        self._report("changed")

    def _report(self, event: Event) -> None:
        if not self._over:
            self._over = event == "lost"
            self._listen(event)

    # Partitions; see the module.

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """Claims partitions, each for itself; returns those that this session owns now.

        A partition that another session owns is left out; a ``changed`` event follows when it becomes free. One that
        this session owns already is in the answer, with a new version. One whose offset cannot be understood, because a
        newer program wrote it or it is damaged, is left out and named in the log.

        Raises:
            CoordinationLost: Some may have been taken; take them again to know.
            SessionLost
        """
        todo = await self._standings(sorted(dict.fromkeys(partitions)))
        held: dict[Partition, OwnedOffset] = {}
        tries = attempts("who owns the partitions")
        while todo:
            next(tries)
            todo = await self._try(await self._look(todo), held)
        return held

    async def _standings(self, wanted: Iterable[Partition]) -> dict[Partition, Standing]:
        """Reads the lists of owners of queues of which several partitions are wanted."""
        todo: dict[Partition, Standing] = {
            each: "mine" if each in self._held and each not in self._refused else "free" for each in wanted
        }
        counts = Counter(each.queue for each, standing in todo.items() if standing == "free")
        asked = [queue for queue, count in counts.items() if count > FEW]
        lists = await self.link.children(map(self._paths.owners_of, asked))
        for queue, numbers in zip(asked, lists, strict=True):
            owned = (Partition(queue, int(number)) for number in numbers or () if number.isdecimal())
            todo |= {each: "owned" for each in owned if todo.get(each) == "free"}
        return todo

    async def _look(self, todo: dict[Partition, Standing]) -> dict[Partition, Standing]:
        """Reads and watches the owners of the owned ones. Those that are watched already are another session's."""
        if "owned" not in todo.values():
            return todo
        owners = {self._paths.owner(each): each for each, standing in todo.items() if standing == "owned"}
        asked = [path for path in owners if path not in self._watched_owners]
        self._watched_owners.update(asked)
        try:
            nodes = await self.link.read(asked, watch=True)
        except BaseException:
            self._watched_owners.difference_update(asked)
            raise
        found: dict[Partition, Standing] = {each: standing for each, standing in todo.items() if standing != "owned"}
        for path, node in zip(asked, nodes, strict=True):
            if (standing := self._standing(node)) != "owned":
                found[owners[path]] = standing
                self._watched_owners.discard(path)
        return found

    def _standing(self, owner: NodeData | None) -> Standing:
        if owner is None:
            return "free"
        if owner.session == self.link.session:
            return "mine"
        return "former" if owner.data == self._owner else "owned"

    async def _try(
        self, todo: Mapping[Partition, Standing], held: dict[Partition, OwnedOffset]
    ) -> dict[Partition, Standing]:
        """Claims the free ones and those that are ours; returns those that turned out to be something else."""
        nodes = await self.link.read(map(self._paths.offset, todo))
        await make(self.link, self._holders(each for each, node in zip(todo, nodes, strict=True) if node is None))
        others = await self._others(todo)
        # Before anything is taken: what cannot be understood must not be owned.
        offsets = [(each, node) for each, node in zip(todo, nodes, strict=True) if each not in others]
        read = [(each, node, offset) for each, node in offsets if (offset := self._understood(each, node))]
        outcomes = await self.link.apply_each(
            self._claiming(each, node, offset, todo[each]) for each, node, offset in read
        )
        again: dict[Partition, Standing] = {each: "owned" for each in others if todo[each] == "mine"}
        orphans: list[Partition] = []
        for (partition, _, offset), outcome in zip(read, outcomes, strict=True):
            if isinstance(outcome, Applied):
                held[partition] = self._held[partition] = OwnedOffset(partition, offset, outcome.versions[-1])
                self._refused.discard(partition)
                continue
            again[partition] = self._standing_after(outcome, partition, todo[partition])
            if outcome.why is RejectionReason.NO_NODE:
                orphans.append(partition)
        await make(self.link, self._holders(orphans))
        return again

    async def _others(self, todo: Mapping[Partition, Standing]) -> set[Partition]:
        """Returns the partitions that a member of the same name may have claimed after it replaced this one.

        Its claim raised the version of the offset, which was read before and is checked by the claim of this session.
        """
        mine = [each for each, standing in todo.items() if standing == "mine"]
        owners = await self.link.read(map(self._paths.owner, mine)) if mine else []
        others = {each for each, owner in zip(mine, owners, strict=True) if self._standing(owner) != "mine"}
        for partition in others:
            self._held.pop(partition, None)
        if former := [each for each, standing in todo.items() if standing == "former"]:
            (member,) = await self.link.read([self._paths.member(self._member.id)])
            others.update(former if self._standing(member) != "mine" else ())
        return others

    def _understood(self, partition: Partition, node: NodeData | None) -> CommittedOffset | None:
        """Returns the offset that a node holds; None if it cannot be decoded (logged once per partition)."""
        if node is None:
            return CommittedOffset()
        try:
            return decode_offset(node.data)
        except CoordinationIncompatible as error:
            if partition not in self._strange:
                self._strange.add(partition)
                log.error("%s is skipped, because its offset cannot be read: %s", partition, error)  # noqa: TRY400 - says it all
            return None

    def _standing_after(self, refusal: Rejection, partition: Partition, before: Standing) -> Standing:
        # Of one that a former session owned only the first operation can find the owner to be another.
        if refusal.at:
            return "mine" if before == "mine" else "free"
        if refusal.why is RejectionReason.NODE_EXISTS:
            return "owned"
        self._held.pop(partition, None)
        return "free"

    def _claiming(
        self, partition: Partition, node: NodeData | None, recorded: CommittedOffset, standing: Standing
    ) -> Change:
        path, there = self._paths.owner(partition), self._paths.offset(partition)
        claimed = encode_offset(replace(recorded, held=True))
        offset = Create(there, claimed) if node is None else SetData(there, claimed, node.version)
        if standing == "mine":
            return Check(path), offset
        owner = Create(path, self._owner, ephemeral=True)
        return (Delete(path), owner, offset) if standing == "former" else (owner, offset)

    def _holders(self, partitions: Iterable[Partition]) -> list[str]:
        """Returns the nodes that hold the owners and the offsets of partitions."""
        queues = dict.fromkeys(partition.queue for partition in partitions)
        return [holder(queue) for queue in queues for holder in (self._paths.owners_of, self._paths.offsets_of)]

    async def release(self, partitions: Iterable[Partition]) -> None:
        """Gives partitions up; those that this session does not own are passed over.

        Raises:
            CoordinationLost, SessionLost
        """
        held: list[OwnedOffset] = []
        doubtful: set[Partition] = set()
        for partition in dict.fromkeys(partitions):
            one = self._held.pop(partition, None)
            if one is None or partition in self._refused:
                doubtful.add(partition)
            else:
                held.append(one)
        outcomes = zip(held, await self.link.apply_each(map(self._releasing, held)), strict=True)
        # Of one whose version is in doubt it stays recorded that it was not released: its next owner is careful.
        doubtful.update(one.partition for one, outcome in outcomes if not isinstance(outcome, Applied))
        await self._remove_owners(doubtful)

    def _releasing(self, held: OwnedOffset) -> Change:
        offset = encode_offset(replace(held.offset, held=False))
        owner, there = self._paths.owner(held.partition), self._paths.offset(held.partition)
        return Delete(owner), SetData(there, offset, held.version)

    async def _remove_owners(self, doubtful: AbstractSet[Partition]) -> None:
        """Removes the owners' nodes that are this session's.

        A member of the same name may replace the node meanwhile. It raises the version of the offset then, so this is
        read first, and checked.
        """
        tries = attempts("who owns the partitions")
        while doubtful:
            next(tries)
            asked = sorted(doubtful)
            nodes = await self.link.look([*map(self._paths.offset, asked), *map(self._paths.owner, asked)])
            found = zip(asked, nodes[: len(asked)], nodes[len(asked) :], strict=True)
            removing: dict[Partition, Change] = {}
            for partition, offset, owner in found:
                if owner is not None and owner.session == self.link.session:
                    check = () if offset is None else (Check(self._paths.offset(partition), offset.version),)
                    removing[partition] = (*check, Delete(self._paths.owner(partition)))
            outcomes = zip(removing, await self.link.apply_each(removing.values()), strict=True)
            doubtful = {each for each, outcome in outcomes if not isinstance(outcome, Applied)}

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """Records the last processed id of partitions, each for itself, and the note that ``offset`` of each carries.

        Returns:
            For each what is held now, or None: it is no longer this session's, or the version is not the latest, and
            nothing was recorded for it.

        Raises:
            CoordinationLost: Each was recorded or not; take the partitions again to know.
            SessionLost: None was recorded.
        """
        instant, me = self._clock(), self._member.id
        # Of each partition the last one counts.
        wanted = {held.partition: (held, identifier) for held, identifier in offsets}
        # The servers check that there is an owner; that it is this session only the session knows.
        recorded = [
            (held, CommittedOffset(identifier, instant, me, held=True, note=held.offset.note))
            for held, identifier in wanted.values()
            if held.partition in self._held
        ]
        now: dict[Partition, OwnedOffset | None] = dict.fromkeys(wanted)
        outcomes = await self.link.apply_each(starmap(self._recording, recorded))
        for (held, offset), outcome in zip(recorded, outcomes, strict=True):
            if isinstance(outcome, Applied):
                after = OwnedOffset(held.partition, offset, outcome.versions[-1])
                now[held.partition] = self._held[held.partition] = after
            else:
                # A session that is refused reads the partition's owner before it takes or releases it.
                self._refused.add(held.partition)
        return now

    def _recording(self, held: OwnedOffset, offset: CommittedOffset) -> Change:
        path = self._offset_path(held.partition)
        return Check(self._owner_path(held.partition)), SetData(path, encode_offset(offset), held.version)
