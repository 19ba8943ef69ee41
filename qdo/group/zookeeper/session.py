"""A member's session in a group: one link to the tree, and the member's ephemeral nodes while the session lasts.

A session claims partitions, releases them, and commits how far each was processed.

**Fencing.** A claim is one transaction: it creates the owner's node and rewrites the offset's node with its present
data, at the version that was read. That raises the version, so a commit at an earlier version is refused. A commit is
one transaction, too: it checks that the owner's node exists and that the offset has the version of the claim or of the
last commit. A commit is refused in each of these cases:

* The session has ended and the partition has no new owner: the owner's node does not exist. (An ended session claims
  nothing, and a link never starts a second session.)
* Another member has claimed the partition: the version differs.
* Another session owns the partition, but the caller knows the version: a session commits only what it claimed itself.

Checking the owner's node alone is not enough: only versions of data are compared, and a new node starts at the same
version as the old one.

A request whose answer was lost may have been executed. Claiming the partition again settles this: the node shows its
owner, and the version rises once more, so no request sent before can succeed afterwards.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import starmap
from typing import Literal, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from qdo.errors import CoordinationIncompatible, CoordinationLost, MemberExists, SessionLost
from qdo.group.records import (
    CommittedOffset,
    Event,
    Listen,
    Member,
    SessionOffset,
    TargetAssignment,
    Versioned,
    Visibility,
    decode_member,
    decode_offset,
    encode_member,
    encode_offset,
)
from qdo.group.zookeeper.paths import GroupPaths, decode
from qdo.group.zookeeper.stored_assignments import MakeMark, StoredAssignments, new_mark
from qdo.group.zookeeper.tree import (
    ANY_VERSION,
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
    lacks_parent,
    make_nodes,
    yield_attempts,
)
from qdo.group.zookeeper.watched import WatchedNodes
from qdo.partitions import Partition

log = logging.getLogger(__name__)

MAX_UNLISTED_CLAIMS = 4
"""Max partitions of a queue that are claimed without listing the queue's owners first."""


Standing: TypeAlias = Literal["free", "mine", "owned", "former"]
"""The owner of a partition, as far as a session knows: nobody; this session; another session; or an earlier session of
this member, whose claim may be replaced."""


class ZooKeeperSession:
    """A member's session in a group, until it leaves or is lost.

    Args:
        link: An open link. The session and the link end together.
        group_paths: The group's paths.
        member: The member.
        listen: Called with each event.
        clock: Returns seconds since 1970, for recorded times.
        new_mark: Returns a unique text at each call.
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
        self._owner_path = cache(group_paths.owner)  # used by each commit; a session sees few partitions
        self._offset_path = cache(group_paths.offset)
        self._owner = member.id.encode()
        self._held: dict[Partition, SessionOffset] = {}
        self._refused: set[Partition] = set()
        self._unreadable: set[Partition] = set()
        self._watched_owners: set[str] = set()
        self._over = False

    async def join(self, *, replace: bool = False) -> None:
        """Creates the member's node.

        Args:
            replace: Deletes the node of another session with the same member id.

        Raises:
            MemberExists: Another session has created the node, and ``replace`` is not set.
            CoordinationLost, CoordinationRefused
        """
        create: Change = (Create(self._paths.member(self._member.id), self._stored, ephemeral=True),)
        for _ in yield_attempts("the group"):
            (outcome,) = await self.link.apply([create])
            if isinstance(outcome, Applied):
                break
            if outcome.why is RejectionReason.NODE_EXISTS and replace:
                await self.link.apply([(Delete(create[0].path),)])
            elif outcome.why is RejectionReason.NODE_EXISTS:
                raise MemberExists(f"group {self._paths.group!r} has a live member {self._member.id!r}")
            if lacks_parent(outcome):
                await make_nodes(self.link, [self._paths.members])
        if self.link.state != "connected":
            raise CoordinationLost("the connection to the coordination service broke")
        self.link.on_state = self._on_state
        self.link.on_watch = self._on_watch

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        state = self.link.state
        return "lost" if state == "new" else state

    @property
    def leadership(self) -> Self:
        return self

    async def assignment(self) -> frozenset[Partition]:
        """Ends the session if the member's node is missing or another session's; restores its data if they differ.

        The cost does not grow with the number of members and partitions of the group.
        """
        node = await self._watching.read_node(self._paths.member(self._member.id))
        if node is None or node.session != self.link.session:
            raise self._end_as_removed()
        if node.data != self._stored:  # A replaced member with this name has written the node since.
            await self._write_member()
        return await self._assignments.read_own_partitions()

    async def lead(self) -> bool:
        tries = yield_attempts("the leader")
        while True:
            next(tries)
            node = await self._watching.read_node(self._paths.leader)
            if node is not None:
                return node.session == self.link.session
            if self._member.leaving:
                return False
            await self.link.apply([(Create(self._paths.leader, self._member.id.encode(), ephemeral=True),)])
            self._watching.invalidate([self._paths.leader])

    def begin_to_leave(self) -> None:
        """Does nothing: other members learn of it when this member retires."""

    async def retire(self) -> None:
        # Another member leads from now on.
        self._member = msgspec.structs.replace(self._member, leaving=True)
        leads = await self.lead()
        await self._update_member(self._member)
        if leads:
            await self.link.apply([(Delete(self._paths.leader),)])

    async def leader(self) -> Member | None:
        node = await self._watching.read_node(self._paths.leader)
        member = node and await self._watching.read_node(self._paths.member(node.data.decode()))
        return None if member is None else decode_member(member.data)

    async def set_sight(self, sight: Visibility) -> None:
        await self._update_member(msgspec.structs.replace(self._member, sight=sight))

    async def _update_member(self, member: Member) -> None:
        self._member, self._stored = member, encode_member(member)
        await self._write_member()

    async def _write_member(self) -> None:
        await self.link.apply([(SetData(self._paths.member(self._member.id), self._stored, ANY_VERSION),)])

    async def members(self) -> dict[str, Member]:
        paths = {
            decode(name): f"{self._paths.members}/{name}"
            for name in await self._watching.read_children(self._paths.members)
        }
        nodes = await self._watching.read_nodes(path for _, path in sorted(paths.items()))
        members = [decode_member(node.data) for node in nodes.values() if node is not None]
        return {member.id: member for member in sorted(members, key=lambda member: member.id)}

    async def target(self) -> Versioned:
        return await self._assignments.target()

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        return await self._assignments.set_target(target, version)

    async def leave(self) -> None:
        self._over = True
        await self.link.close()

    def _end_as_removed(self) -> SessionLost:
        error = SessionLost("the member was removed from the group")
        self.link.end(error)
        return error

    def _on_state(self, state: State) -> None:
        """Reports a new state. After a reconnection forgets all watches and reports ``changed``, too."""
        if state != "new":  # a link never returns to "new"; this narrows the type
            self._report(state)
        if state == "connected":
            # The servers have dropped all watches of this session.
            self._watching.forget()
            self._watched_owners.clear()
            self._report("changed")

    def _on_watch(self, paths: list[str]) -> None:
        self._watching.invalidate(paths)
        self._watched_owners.difference_update(paths)
        self._report("changed")

    def _report(self, event: Event) -> None:
        if not self._over:
            self._over = event == "lost"
            self._listen(event)

    # Partitions; see the module's docstring

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, SessionOffset]:
        # A partition whose offset cannot be decoded (written by a newer program, or damaged) is left out and logged.
        todo = await self._read_standings(sorted(dict.fromkeys(partitions)))
        held: dict[Partition, SessionOffset] = {}
        tries = yield_attempts("the owners of partitions")
        while todo:
            next(tries)
            todo = await self._try_claims(await self._read_owners(todo), held)
        return held

    async def _read_standings(self, partitions: Iterable[Partition]) -> dict[Partition, Standing]:
        """Returns the assumed standing of each partition: mine if this session knows it owns it, else free or owned.

        A partition is owned if the list of its queue's owners shows it. Only the owners of queues with more than
        ``MAX_UNLISTED_CLAIMS`` partitions that seem free are listed.
        """
        todo: dict[Partition, Standing] = {
            p: "mine" if p in self._held and p not in self._refused else "free" for p in partitions
        }
        counts = Counter(p.queue for p, standing in todo.items() if standing == "free")
        queues = [queue for queue, count in counts.items() if count > MAX_UNLISTED_CLAIMS]
        lists = await self.link.children(map(self._paths.owners_of, queues))
        for queue, numbers in zip(queues, lists, strict=True):
            owned = (Partition(queue, int(number)) for number in numbers or () if number.isdecimal())
            todo |= {p: "owned" for p in owned if todo.get(p) == "free"}
        return todo

    async def _read_owners(self, todo: dict[Partition, Standing]) -> dict[Partition, Standing]:
        """Reads the owners of "owned" partitions. Partitions of others are watched and left out of the result.

        Also leaves out, without reading them, partitions that are watched already.
        """
        if "owned" not in todo.values():
            return todo
        owners = {self._paths.owner(p): p for p, standing in todo.items() if standing == "owned"}
        unwatched = [path for path in owners if path not in self._watched_owners]
        self._watched_owners.update(unwatched)
        try:
            nodes = await self.link.read(unwatched, watch=True)
        except BaseException:
            self._watched_owners.difference_update(unwatched)
            raise
        standings: dict[Partition, Standing] = {p: standing for p, standing in todo.items() if standing != "owned"}
        for path, node in zip(unwatched, nodes, strict=True):
            if (standing := self._find_standing(node)) != "owned":
                standings[owners[path]] = standing
                self._watched_owners.discard(path)
        return standings

    def _find_standing(self, owner: NodeData | None) -> Standing:
        """Returns the standing that a node shows; a node of another session of this member is "former"."""
        if owner is None:
            return "free"
        if owner.session == self.link.session:
            return "mine"
        return "former" if owner.data == self._owner else "owned"

    async def _try_claims(
        self, todo: Mapping[Partition, Standing], held: dict[Partition, SessionOffset]
    ) -> dict[Partition, Standing]:
        nodes = await self.link.read(map(self._paths.offset, todo))
        await make_nodes(
            self.link, self._container_paths(p for p, node in zip(todo, nodes, strict=True) if node is None)
        )
        changed = await self._find_changed_owners(todo)
        others = changed | await self._find_kept_by_replacement(todo)
        # Decode before claiming: a partition whose offset cannot be decoded must not be owned.
        offsets = [(p, node) for p, node in zip(todo, nodes, strict=True) if p not in others]
        read = [(p, node, offset) for p, node in offsets if (offset := self._decode_offset(p, node))]
        outcomes = await self.link.apply_each(self._make_claim(p, node, offset, todo[p]) for p, node, offset in read)
        again: dict[Partition, Standing] = dict.fromkeys(changed, "owned")
        orphans: list[Partition] = []
        for (partition, _, offset), outcome in zip(read, outcomes, strict=True):
            if isinstance(outcome, Applied):
                held[partition] = self._held[partition] = SessionOffset(partition, offset, outcome.versions[-1])
                self._refused.discard(partition)
                continue
            again[partition] = self._find_standing_after(outcome, partition, todo[partition])
            if outcome.why is RejectionReason.NO_NODE:
                orphans.append(partition)
        await make_nodes(self.link, self._container_paths(orphans))
        return again

    async def _find_changed_owners(self, todo: Mapping[Partition, Standing]) -> set[Partition]:
        """Returns the partitions that were "mine" or "former" and no longer are, and drops them from those held.

        Called after the offsets are read, so that an owner that changes later raises a version that the claim checks.
        If it has changed before, the claim would succeed: it would delete the node of another owner.
        """
        owned = [p for p, standing in todo.items() if standing in {"mine", "former"}]
        owners = await self.link.read(map(self._paths.owner, owned)) if owned else []
        changed = {p for p, owner in zip(owned, owners, strict=True) if self._find_standing(owner) != todo[p]}
        for partition in changed:
            self._held.pop(partition, None)
        return changed

    async def _find_kept_by_replacement(self, todo: Mapping[Partition, Standing]) -> set[Partition]:
        former = {p for p, standing in todo.items() if standing == "former"}
        if not former:
            return former
        (member,) = await self.link.read([self._paths.member(self._member.id)])
        return former if self._find_standing(member) != "mine" else set()

    def _decode_offset(self, partition: Partition, node: NodeData | None) -> CommittedOffset | None:
        if node is None:
            return CommittedOffset()
        try:
            return decode_offset(node.data)
        except CoordinationIncompatible as error:
            if partition not in self._unreadable:
                self._unreadable.add(partition)
                log.error("%s is skipped, because its offset cannot be read: %s", partition, error)  # noqa: TRY400 - says it all
            return None

    def _find_standing_after(self, refusal: Rejection, partition: Partition, before: Standing) -> Standing:
        """Returns the standing with which to try a refused claim again.

        That is "owned" if there is an owner's node, else "free"; but "mine" stays if only the offset has changed.
        """
        # If a former session owned the partition, only operation 0 can fail because of another owner.
        if refusal.at:
            return "mine" if before == "mine" else "free"
        if refusal.why is RejectionReason.NODE_EXISTS:
            return "owned"
        self._held.pop(partition, None)
        return "free"

    def _make_claim(
        self, partition: Partition, node: NodeData | None, recorded: CommittedOffset, standing: Standing
    ) -> Change:
        path, offset_path = self._paths.owner(partition), self._paths.offset(partition)
        claimed = encode_offset(replace(recorded, held=True))
        offset = Create(offset_path, claimed) if node is None else SetData(offset_path, claimed, node.version)
        if standing == "mine":
            return Check(path), offset
        owner = Create(path, self._owner, ephemeral=True)
        return (Delete(path), owner, offset) if standing == "former" else (owner, offset)

    def _container_paths(self, partitions: Iterable[Partition]) -> list[str]:
        queues = dict.fromkeys(partition.queue for partition in partitions)
        return [holder(queue) for queue in queues for holder in (self._paths.owners_of, self._paths.offsets_of)]

    async def release(self, partitions: Iterable[Partition]) -> None:
        held: list[SessionOffset] = []
        doubtful: set[Partition] = set()
        for partition in dict.fromkeys(partitions):
            owned = self._held.pop(partition, None)
            if owned is None or partition in self._refused:
                doubtful.add(partition)
            else:
                held.append(owned)
        outcomes = zip(held, await self.link.apply_each(map(self._make_release, held)), strict=True)
        # If the version is in doubt, the offset keeps ``held``: the next owner sees that it was not released.
        doubtful.update(owned.partition for owned, outcome in outcomes if not isinstance(outcome, Applied))
        await self._remove_owners(doubtful)

    def _make_release(self, held: SessionOffset) -> Change:
        offset = encode_offset(replace(held.offset, held=False))
        owner, offset_path = self._paths.owner(held.partition), self._paths.offset(held.partition)
        return Delete(owner), SetData(offset_path, offset, held.version)

    async def _remove_owners(self, doubtful: AbstractSet[Partition]) -> None:
        """Deletes owner nodes that belong to this session.

        A member of the same name may replace the node meanwhile. That raises the version of the offset, so the version
        is read first, and checked in the transaction.
        """
        tries = yield_attempts("the owners of partitions")
        while doubtful:
            next(tries)
            partitions = sorted(doubtful)
            nodes = await self.link.stat([*map(self._paths.offset, partitions), *map(self._paths.owner, partitions)])
            nodes_by_partition = zip(partitions, nodes[: len(partitions)], nodes[len(partitions) :], strict=True)
            removing: dict[Partition, Change] = {}
            for partition, offset, owner in nodes_by_partition:
                if owner is not None and owner.session == self.link.session:
                    check = () if offset is None else (Check(self._paths.offset(partition), offset.version),)
                    removing[partition] = (*check, Delete(self._paths.owner(partition)))
            outcomes = zip(removing, await self.link.apply_each(removing.values()), strict=True)
            doubtful = {p for p, outcome in outcomes if not isinstance(outcome, Applied)}

    async def commit(
        self, offsets: Iterable[tuple[SessionOffset, str | None]]
    ) -> dict[Partition, SessionOffset | None]:
        instant, me = self._clock(), self._member.id
        # If a partition is repeated, its last offset wins.
        commits = {held.partition: (held, identifier) for held, identifier in offsets}
        # The servers check that the partition has an owner; only this session knows that it is the owner.
        recorded = [
            (held, CommittedOffset(identifier, instant, me, held=True, note=held.offset.note))
            for held, identifier in commits.values()
            if held.partition in self._held
        ]
        states: dict[Partition, SessionOffset | None] = dict.fromkeys(commits)
        outcomes = await self.link.apply_each(starmap(self._make_commit, recorded))
        for (held, offset), outcome in zip(recorded, outcomes, strict=True):
            if isinstance(outcome, Applied):
                state = SessionOffset(held.partition, offset, outcome.versions[-1])
                states[held.partition] = self._held[held.partition] = state
            else:
                # Before the next claim or release of this partition, its owner is read.
                self._refused.add(held.partition)
        return states

    def _make_commit(self, held: SessionOffset, offset: CommittedOffset) -> Change:
        path = self._offset_path(held.partition)
        return Check(self._owner_path(held.partition)), SetData(path, encode_offset(offset), held.version)
