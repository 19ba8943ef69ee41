"""Taking partitions, giving them up, and recording how far each was processed, by one session.

**Fencing.** Taking is one transaction: make the owner's node, and write the offset's node over with what it holds, at
the version that was read. That raises the version, so a commit at an earlier one is refused. A commit is one
transaction as well: the owner's node is there, and the offset has the version of the taking or of the last commit.
What each part keeps out:

* the session has ended and nobody has taken the partition: there is no owner's node (and no server takes anything from
  a session that has ended, and a link never begins a second one);
* somebody else has taken it: the version is another;
* the version is known although the partition is another session's: a session commits only what it took itself.

The owner's node alone would not do: ZooKeeper compares versions of data only, and a node that was made anew begins with
the same one.

What a session asked for without being told the end may have been done. Taking again settles it: the node that is there
says whose it is, and the version goes up once more, so that nothing that was sent before can count after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.coordination.encoding import decode_offset, encode_offset
from qdo.coordination.zookeeper.batching import ParentNodes, apply_each
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.paths import GroupPaths
from qdo.coordination.zookeeper.transactions import (
    Applied,
    Change,
    Check,
    Create,
    Delete,
    NodeData,
    Rejection,
    RejectionReason,
    Rounds,
    SetData,
)
from qdo.errors import CoordinationIncompatible
from qdo.partitions import Partition, Queue

log = logging.getLogger("qdo.zookeeper")

FEW = 4
"""Partitions of a queue that are tried at once; of more it is asked first which are owned, all in one answer."""


class ClaimCandidates(NamedTuple):
    """What to do with partitions that shall be taken.

    Attributes:
        free: Nobody owns them, as far as we know.
        mine: This session owns them.
        owned: Somebody does.
        former: An earlier session of this member does; who has its name may end that.
    """

    free: set[Partition]
    mine: set[Partition]
    owned: set[Partition]
    former: set[Partition]


class SessionPartitions:
    """What one session owns.

    Args:
        link: The session.
        group_paths: The group's paths.
        member: Who it is.
    """

    def __init__(self, link: Link, group_paths: GroupPaths, member: str) -> None:
        self._link = link
        self._paths = group_paths
        self._member = member
        self._maker = ParentNodes(link)
        self._owner = member.encode()
        self._held: dict[Partition, OwnedOffset] = {}
        self._refused: set[Partition] = set()
        self._strange: set[Partition] = set()
        self._watched: set[str] = set()

    def hear(self, paths: Iterable[str]) -> None:
        """Hears that nodes have changed; those of owners are watched once."""
        self._watched.difference_update(paths)

    def forget(self) -> None:
        """Forgets what is watched: nobody told of changes for a while."""
        self._watched.clear()

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """Takes what is free or this session's; returns that. What is not is watched.

        Raises:
            CoordinationLost: Some may have been taken.
            SessionLost, CoordinationRefused
        """
        wanted = dict.fromkeys(partitions)
        held: dict[Partition, OwnedOffset] = {}
        todo = await self._sort(set(wanted))
        rounds = Rounds("who owns the partitions")
        while any(todo) and rounds:
            todo = await self._look(todo)
            todo = await self._try(todo, held)
        return {partition: held[partition] for partition in wanted if partition in held}

    async def _sort(self, wanted: set[Partition]) -> ClaimCandidates:
        """Asks for the owners of queues of which several partitions are wanted."""
        mine = (wanted & self._held.keys()) - self._refused
        queues: dict[Queue, set[Partition]] = {}
        for partition in wanted - mine:
            queues.setdefault(partition.queue, set()).add(partition)
        asked = [queue for queue, several in queues.items() if len(several) > FEW]
        lists = await self._link.children(map(self._paths.owners_of, asked))
        owned: set[Partition] = set()
        for queue, numbers in zip(asked, lists, strict=True):
            there = frozenset(numbers or ())
            owned |= {partition for partition in queues[queue] if str(partition.number) in there}
        return ClaimCandidates(wanted - mine - owned, mine, owned, set())

    async def _look(self, todo: ClaimCandidates) -> ClaimCandidates:
        """Looks whose the owned ones are, and watches them. Those that are watched already are somebody else's."""
        asked = sorted(each for each in todo.owned if self._paths.owner(each) not in self._watched)
        paths = [self._paths.owner(partition) for partition in asked]
        self._watched.update(paths)
        try:
            nodes = await self._link.read(paths, watch=True)
        except BaseException:
            self._watched.difference_update(paths)
            raise
        found = ClaimCandidates(set(todo.free), set(todo.mine), set(), set())
        for partition, path, node in zip(asked, paths, nodes, strict=True):
            if node is None:
                found.free.add(partition)
            elif node.session == self._link.session:
                found.mine.add(partition)
            elif node.data == self._owner:
                found.former.add(partition)
            else:
                continue
            self._watched.discard(path)
        return found

    async def _try(self, todo: ClaimCandidates, held: dict[Partition, OwnedOffset]) -> ClaimCandidates:
        """Takes the free ones and those that are ours; returns those that turned out to be something else."""
        wanted = sorted(todo.free | todo.mine | todo.former)
        nodes = await self._link.read(map(self._paths.offset, wanted))
        offsets = dict(zip(wanted, nodes, strict=True))
        new = {partition.queue for partition, node in offsets.items() if node is None}
        await self._maker.make(path for queue in new for path in self._holders(queue))
        # Before anything is taken: what cannot be understood must not be owned.
        recorded = {each: offset for each, node in offsets.items() if (offset := self._understood(each, node))}
        wishes = {each: self._claiming(each, offsets[each], recorded[each], todo) for each in recorded}
        again = ClaimCandidates(set(), set(), set(), set())
        missing: set[str] = set()
        for partition, outcome in (await apply_each(self._link, wishes)).items():
            if isinstance(outcome, Applied):
                held[partition] = self._held[partition] = OwnedOffset(
                    partition, recorded[partition], outcome.versions[-1]
                )
                self._refused.discard(partition)
                continue
            self._place(partition, outcome, again, mine=partition in todo.mine)
            if outcome.why is RejectionReason.NO_NODE:
                missing.update(self._holders(partition.queue))
        self._maker.doubt(missing)
        await self._maker.make(missing)
        return again

    def _understood(self, partition: Partition, node: NodeData | None) -> CommittedOffset | None:
        """Returns the offset that a node holds; None, with a word in the log, if it is none for this program."""
        if node is None:
            return CommittedOffset()
        try:
            return decode_offset(node.data)
        except CoordinationIncompatible as error:
            if partition not in self._strange:
                self._strange.add(partition)
                log.error("%s is left out, because its offset cannot be read: %s", partition, error)  # noqa: TRY400 - says it all
            return None

    def _place(self, partition: Partition, refusal: Rejection, again: ClaimCandidates, *, mine: bool) -> None:
        """Says what to do with a partition that could not be taken."""
        # Of one that a former session owned only the first operation can find the owner to be another.
        at_owner = refusal.at == 0
        if at_owner and refusal.why is RejectionReason.NODE_EXISTS:
            again.owned.add(partition)
        elif at_owner:
            self._held.pop(partition, None)
            again.free.add(partition)
        else:
            (again.mine if mine else again.free).add(partition)

    def _claiming(
        self, partition: Partition, offset: NodeData | None, recorded: CommittedOffset, todo: ClaimCandidates
    ) -> Change:
        path, there = self._paths.owner(partition), self._paths.offset(partition)
        owner: Change = (Check(path) if partition in todo.mine else Create(path, self._owner, ephemeral=True),)
        if partition in todo.former:
            owner = (Delete(path), *owner)
        claimed = encode_offset(replace(recorded, held=True))
        if offset is None:
            return *owner, Create(there, claimed)
        return *owner, SetData(there, claimed, offset.version)

    def _holders(self, queue: Queue) -> tuple[str, str]:
        return self._paths.owners_of(queue), self._paths.offsets_of(queue)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """Gives up those that are this session's.

        Raises:
            CoordinationLost: Some may have been given up.
            SessionLost, CoordinationRefused
        """
        wanted = set(partitions)
        known = (wanted & self._held.keys()) - self._refused
        doubtful = sorted(wanted - known)
        nodes = await self._link.look(map(self._paths.owner, doubtful))
        ours = {
            partition
            for partition, node in zip(doubtful, nodes, strict=True)
            if node is not None and node.session == self._link.session
        }
        held = {each: one for each in wanted if (one := self._held.pop(each, None)) is not None}
        outcomes = await apply_each(self._link, {each: self._releasing(held[each]) for each in sorted(known)})
        # Of one whose version is in doubt it stays recorded that it was not released: its next owner is careful.
        left = {each for each, outcome in outcomes.items() if not isinstance(outcome, Applied)} | ours
        await apply_each(self._link, {each: (Delete(self._paths.owner(each)),) for each in sorted(left)})

    def _releasing(self, held: OwnedOffset) -> Change:
        offset = encode_offset(replace(held.offset, held=False))
        return Delete(self._paths.owner(held.partition)), SetData(
            self._paths.offset(held.partition), offset, held.version
        )

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """Records ids; of several for a partition the last.

        Raises:
            CoordinationLost: Each was recorded or not.
            SessionLost: None was recorded.
            CoordinationRefused
        """
        instant = time.time()
        wanted = list(offsets)
        known = {held.partition: held for held, _ in wanted}
        recorded = {
            held.partition: CommittedOffset(identifier, instant, self._member, held=True, note=held.offset.note)
            for held, identifier in wanted
        }
        # The servers check that there is an owner; that it is this session only the session knows.
        wishes = {each: self._recording(held, recorded[each]) for each, held in known.items() if each in self._held}
        outcomes = await apply_each(self._link, wishes)
        # Whoever is refused looks whose a partition is before it takes or releases it.
        self._refused.update(each for each, outcome in outcomes.items() if not isinstance(outcome, Applied))
        now: dict[Partition, OwnedOffset | None] = dict.fromkeys(known)
        for partition, outcome in outcomes.items():
            if isinstance(outcome, Applied):
                now[partition] = self._held[partition] = OwnedOffset(
                    partition, recorded[partition], outcome.versions[-1]
                )
        return now

    def _recording(self, held: OwnedOffset, offset: CommittedOffset) -> Change:
        path = self._paths.offset(held.partition)
        return Check(self._paths.owner(held.partition)), SetData(path, encode_offset(offset), held.version)
