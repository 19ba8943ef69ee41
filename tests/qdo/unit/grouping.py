"""A group played through without any service: members that see everything late, and owner nodes that arbitrate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qdo.assignment import plan
from qdo.consumer.owned_partition import State as PartitionState
from qdo.consumer.rebalance.member_states import (
    ComputedPlan,
    LeaderDecision,
    LeaderView,
    PartitionChanges,
    decide_as_leader,
    partition_changes,
)
from qdo.coordination import Member, TargetAssignment
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription

SETTLE, GRACE = 1.0, 20.0


@dataclass
class Player:
    """A member: what it has seen so far, and what it holds.

    Attributes:
        member: As it joined.
        session: Which of its sessions this is; the service forgets a session that expires.
        members_at: The snapshot of members that it saw last.
        target_at: The target that it saw last.
        held: What it works on.
        revoking: What it was told to give up and has not released yet.
        unsure: What it may own, because it did not hear how a taking ended.
        since: For what is held, the target that was the latest when it was taken.
        queues: Those that it found last.
    """

    member: Member
    session: int
    members_at: int
    target_at: int = 0
    held: set[Partition] = field(default_factory=set)
    revoking: set[Partition] = field(default_factory=set)
    unsure: set[Partition] = field(default_factory=set)
    planned: ComputedPlan | None = None
    changed_at: float = 0.0
    since: dict[Partition, int] = field(default_factory=dict)
    queues: Mapping[Queue, int] = field(default_factory=dict)


class Play:
    """The service and its members.

    Attributes:
        now: The clock of everybody.
        players: Those that run, whether or not their session has ended.
        nodes: The live members, with their sessions.
        targets: Every target that was ever set; the place in the list is the version.
        owners: The session that owns a partition.
        counts: How many partitions each queue has.
    """

    def __init__(self, queues: list[Queue]) -> None:
        self.now = 1000.0
        self.players: dict[str, Player] = {}
        self.nodes: dict[str, tuple[Member, int]] = {}
        self.targets: list[TargetAssignment | None] = [None]
        self.owners: dict[Partition, int] = {}
        self._queues = queues
        self.counts: Mapping[Queue, int] = dict.fromkeys(queues, 2)
        self._snapshots: list[dict[str, Member]] = [{}]
        self._sessions = 0
        self._calm = False

    @property
    def members(self) -> dict[str, Member]:
        """The live members."""
        return self._snapshots[-1]

    # What happens to members.

    def join(self, name: str, number: int) -> None:
        """A member joins, if none has this name; every third is static, and most see all queues."""
        if name not in self.players and name not in self.nodes:
            member = Member(name, self._some(number), static=not number % 3)
            self._sessions += 1
            self.players[name] = Player(member, self._sessions, len(self._snapshots) - 1, queues=self.counts)
            self.nodes[name] = (member, self._sessions)
            self._snap()

    def crash(self, name: str, _: int) -> None:
        """A member is gone at once, and with it all that it owned."""
        self.expire(name, 0)
        self.players.pop(name, None)

    def expire(self, name: str, _: int) -> None:
        """The session of a member ends, and the member does not know."""
        if name in self.nodes:
            session = self.nodes.pop(name)[1]
            self.owners = {partition: owner for partition, owner in self.owners.items() if owner != session}
            self._snap()

    def grow(self, _: str, number: int) -> None:
        """A queue gets more partitions, which members see later."""
        queue = self._queues[number % len(self._queues)]
        self.counts = {**self.counts, queue: self.counts[queue] + 1}

    # What members do.

    def look(self, name: str, number: int) -> None:
        """A member sees some more of what has happened, not always all."""
        player = self.players.get(name)
        if player is not None:
            behind = len(self._snapshots) - 1 - player.members_at
            if behind and number % 2:
                player.members_at += 1 + number % behind
                player.changed_at = self.now
            if number % 3:
                player.queues = self.counts
            behind = len(self.targets) - 1 - player.target_at
            if behind:
                player.target_at += 1 + number % behind

    def act(self, name: str, number: int) -> None:
        """A member decides on what it has seen, and does it, unless its session has ended: then it joins anew."""
        player = self.players.get(name)
        if player is None:
            return
        if not self._live(player):
            del self.players[name]
            self.join(name, number)
            return
        todo = partition_changes(self.given(player), self.states(player))
        self._revoke(player, todo.give_up & player.held)
        for partition in todo.give_up - player.revoking:
            self._release(player, partition)
        for partition in sorted(todo.claim):
            self._claim(player, partition, heard=self._calm or bool((number + partition.number) % 4))
        if (orders := self.orders(player)) is None:
            player.planned = None
            return
        player.planned = orders.planned
        if orders.target is not None and player.target_at == len(self.targets) - 1:
            self.targets.append(orders.target)
            player.target_at += 1

    def finish(self, name: str, number: int) -> None:
        """A member is done with some of what it was to give up."""
        player = self.players.get(name)
        if player is not None and self._live(player):
            for partition in sorted(player.revoking)[: 1 + number % 3]:
                self._release(player, partition)

    def wait(self, _: str, number: int) -> None:
        """Time passes."""
        self.now += number / 4

    # What can be asked.

    def given(self, player: Player) -> frozenset[Partition]:
        """Returns what a member is to own, as far as it knows."""
        target = self.targets[player.target_at]
        owners = {} if target is None else target.owners
        return frozenset(partition for partition, owner in owners.items() if owner == player.member.id)

    @staticmethod
    def states(player: Player) -> dict[Partition, PartitionState]:
        """Returns the states of a member's partitions."""
        return {
            **dict.fromkeys(player.unsure, "unsure"),
            **dict.fromkeys(player.held, "owned"),
            **dict.fromkeys(player.revoking, "revoking"),
        }

    def orders(self, player: Player) -> LeaderDecision | None:
        """Returns what a member does if it leads: whose name comes first, and now and then one that did so before."""
        members = self._snapshots[player.members_at]
        if player.member.id != min(members, default=None):
            return None
        return decide_as_leader(
            LeaderView(
                members=members,
                queues=player.queues,
                target=self.targets[player.target_at],
                planned=player.planned,
                now=self.now,
                age=self.now - player.changed_at,
                settle=SETTLE,
                grace=GRACE,
            )
        )

    def holders(self) -> Mapping[Partition, list[str]]:
        """Returns the members with a living session that believe to own each partition."""
        found: dict[Partition, list[str]] = {}
        for name, player in self.players.items():
            if self._live(player):
                for partition in player.held | player.revoking:
                    found.setdefault(partition, []).append(name)
        return found

    def settle(self, rounds: int = 60) -> bool:
        """Lets everybody see everything and act, with nothing happening to them; tells whether it comes to rest."""
        self._calm = True
        for _ in range(rounds):
            for name in sorted(self.players):
                self.see_all(name)
                self.act(name, 1)
                self.finish(name, 2)
            self.now += SETTLE * 2
            if not any(self._restless(name) for name in self.players):
                self._calm = False
                return True
        return False

    def see_all(self, name: str) -> None:
        """A member sees all there is."""
        if (player := self.players.get(name)) is not None:
            if player.members_at < len(self._snapshots) - 1:
                player.members_at = len(self._snapshots) - 1
                player.changed_at = self.now
            player.target_at = len(self.targets) - 1
            player.queues = self.counts

    def right(self) -> TargetAssignment:
        """Returns what the target ought to be."""
        return plan(self.members, self.counts, self.targets[-1], self.now, GRACE).target

    def _restless(self, name: str) -> bool:
        """Tells whether a member has anything left to do or to wait for, once it has seen all."""
        self.see_all(name)
        player = self.players[name]
        todo, orders = partition_changes(self.given(player), self.states(player)), self.orders(player)
        idle = todo == PartitionChanges() and (orders is None or orders == LeaderDecision(planned=orders.planned))
        return bool(player.revoking) or not self._live(player) or not idle

    def _live(self, player: Player) -> bool:
        return self.nodes.get(player.member.id, (None, 0))[1] == player.session

    def _snap(self) -> None:
        self._snapshots.append({name: member for name, (member, _) in self.nodes.items()})

    def _some(self, number: int) -> Subscription:
        """Returns all queues, or for some numbers a part of them."""
        left_out = number % 7 - 1
        names = frozenset(queue.name for at, queue in enumerate(self._queues) if at != left_out)
        return Subscription(names, (), self._queues[0].service, self._queues[0].application)

    def _revoke(self, player: Player, partitions: frozenset[Partition]) -> None:
        """Checks that what is revoked was given to somebody else, or to nobody, since it was taken."""
        for partition in partitions:
            later = self.targets[player.since[partition] : player.target_at + 1]
            assert any(target is not None and target.owners.get(partition) != player.member.id for target in later)
        player.held -= partitions
        player.revoking |= partitions

    def _claim(self, player: Player, partition: Partition, *, heard: bool) -> None:
        """Takes a partition if it is free; now and then the answer is not heard."""
        owner = self.owners.setdefault(partition, player.session)
        player.unsure.discard(partition)
        if not heard:
            player.unsure.add(partition)
        elif owner == player.session:
            player.held.add(partition)
            player.since[partition] = player.target_at

    def _release(self, player: Player, partition: Partition) -> None:
        if self.owners.get(partition) == player.session:
            del self.owners[partition]
        player.revoking.discard(partition)
        player.unsure.discard(partition)


DEEDS: Mapping[str, Callable[[Play, str, int], None]] = {
    "join": Play.join,
    "crash": Play.crash,
    "expire": Play.expire,
    "grow": Play.grow,
    "look": Play.look,
    "act": Play.act,
    "finish": Play.finish,
    "wait": Play.wait,
}
"""What can happen, each to a member and with a number that says how."""
