"""Groups in a simulated tree: its network, its leader, and what members may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qdo import ZooKeeperCoordinator
from qdo.group.zookeeper.tree import Delete
from tests.sim.groups.history import History
from tests.sim.groups.machine import Machine
from tests.sim.groups.storm import SLOW, Storm
from tests.sim.groups.tree import TIMEOUT, Tree, TreeLink
from tests.sim.groups.trees.history import TreeHistory

LEADER = "/groups/group/leader"


class TreeStorm(Storm):
    """One history of a group in a tree."""

    def _make_history(self) -> History:
        history = TreeHistory(self.service)
        self.tree = Tree(self.world, history)
        return history

    def coordinate(self, machine: Machine, links: list[TreeLink]) -> ZooKeeperCoordinator:
        def make_link(_max_blocked_seconds: float) -> TreeLink:
            link = TreeLink(self.tree, machine)
            links.append(link)
            return link

        return ZooKeeperCoordinator("group", make_link, TIMEOUT, clock=machine.clock, new_mark=self.mark)

    def session_of(self, machine: Machine, links: list[TreeLink]) -> int:
        return links[-1].session

    def list_faults(self) -> Sequence[Callable[[], None]]:
        return [
            *[self._crash] * 2,
            *[self._pause] * 3,
            *[self._cut_tree] * 2,
            self._lose_claim,
            *[self._slow_tree] * 2,
            self._depose,
            self._cut_service,
            *[self._leave_and_restart] * 2,
            *[self._replace] * 4,
            self._create_or_remove_queue,
            self.add_partition,
            self.change_rights,
        ]

    def _cut_tree(self) -> None:
        machine = self.pick_machine()
        if machine.no_tree:
            return
        machine.no_tree = True
        machine.cut_tree(self.world.random_time(0.25))

        def heal() -> None:
            machine.no_tree = False

        self.world.after(self.world.random_time(1.5), heal)

    def _lose_claim(self) -> None:
        self.pick_machine().loses_claim = True

    def _slow_tree(self) -> None:
        machine = self.pick_machine()
        machine.latency = SLOW
        self.world.after(self.world.random_time(2.5), machine.speed_up)

    def _depose(self) -> None:
        """Slows the leader and lets a member leave. Removes the leader's node later, so that two may set the target."""

        def remove() -> None:
            self.tree.apply(0, (Delete(LEADER),))

        leader = self.tree.nodes.get(LEADER)
        for machine in self.machines:
            if leader is not None and self.history.loops.get(leader.session) is machine.loop:
                machine.latency = SLOW
                self.world.after(self.world.random_time(2.5), machine.speed_up)
                self.pick_machine().leave()
                self.world.after(self.world.random_time(1.0), remove)

    def _is_seen(self, place: str, owner: int) -> bool:
        """Returns whether the leader or the owner may see that a queue is gone. Others cannot."""
        leader = self.tree.nodes.get(LEADER)
        sessions = {owner} if leader is None else {owner, leader.session}
        loops = [self.history.loops[session] for session in sessions]
        name = place.split("/")[2]
        return any(machine.key.reads(name) for machine in self.machines if machine.loop in loops)
