"""A machine on which members of a group live, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tests.sim.groups.loop import MemberLoop
from tests.sim.groups.member import Member
from tests.sim.groups.network import Caller
from tests.sim.groups.service import Key
from tests.sim.groups.tree import TreeLink

if TYPE_CHECKING:
    from tests.sim.groups.storm import Storm

LATENCIES = 0.004, 0.004, 0.02, 0.1
"""Choices of the mean seconds to the tree."""


class Machine(Caller):
    """The machine of a member.

    Args:
        storm: The history that it is part of.
        name: Its name. Static members have it as well.
        program: The kind of member that runs there.
        static: Whether its members are static.
        wants: Names of queues; empty: all queues.
        key: The rights of its credential.

    Attributes:
        up: A member lives there.
        gone: No member will live there any more.
        no_tree: Its packets do not reach the tree.
        no_service: Its packets do not reach the service.
        latency: Mean seconds to the tree.
        usual_latency: The latency without faults.
        loses_claim: The answer to the next claim is lost.
        member: The last member that began there.
    """

    def __init__(
        self, storm: Storm, name: str, program: type[Member], *, static: bool, wants: tuple[str, ...], key: Key
    ) -> None:
        super().__init__(storm.world, storm.world.rng.uniform(-0.5, 0.5), storm.webs, storm.draw_habits())
        self.storm = storm
        self.name = name
        self.program = program
        self.static = static
        self.wants = wants
        self.key = key
        self.up = self.gone = self.no_tree = self.no_service = self.loses_claim = False
        self.latency = self.usual_latency = storm.world.rng.choice(LATENCIES)
        self.loop = MemberLoop(self)  # type: ignore[abstract]  # much of it is not needed
        self.member: Member | None = None

    def begin(self) -> None:
        """Starts a member, unless it lives or its machine is gone for good."""
        if self.gone or self.up:
            return
        self.up = True
        self.loop = MemberLoop(self)  # type: ignore[abstract]
        self.member = self.program(self)
        self.start(self.member.live())

    def crash(self) -> None:
        """Stops its member and breaks its connections. The tree is not notified."""
        self.stop_member()
        self.cut_tree(0.0)

    def stop_member(self) -> None:
        """Stops all that is left of its member, alive or not. Another may begin."""
        super().crash()
        self.up = False
        self.storm.ended(self)

    def is_lost(self) -> bool:
        return self.no_service or super().is_lost()

    def cut_tree(self, notice: float) -> None:
        """Breaks all of its connections to the tree. Its member notices after ``notice`` seconds."""
        for link in self.member.links if self.member is not None else ():
            link.cut(notice)

    def claimed(self, link: TreeLink, queue: str) -> None:
        """Loses the answer to a claim if that is due: cuts the machine off for a while, and removes the queue."""
        if not self.loses_claim:
            return
        self.loses_claim = False
        self.no_tree = True
        link.cut(self.world.random_time(0.1))
        self.storm.remove(queue)  # so the partition may be gone when the member comes back

        def heal() -> None:
            self.no_tree = False

        self.world.after(0.5 + self.world.random_time(1.0), heal)

    def speed_up(self) -> None:
        self.latency = self.usual_latency

    def wake(self) -> None:
        self.paused_until = 0.0

    def leave(self) -> None:
        """Asks its member to leave, in the background. It may still live for a while."""
        if self.up and self.member is not None:
            self.start(self.member.leave())

    def takes(self, name: str) -> bool:
        """Returns whether its member is to own partitions of a queue: it is up, wants the queue, and may read it."""
        return self.up and (not self.wants or name in self.wants) and self.key.reads(name)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts work in the member's loop. An error that ends it is recorded as a violation."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.storm.history.wrong.append(f"program: {self.name} ended with {error!r}")

        with self.loop.running():
            task = self.loop.create_task(work)
        task.add_done_callback(ended)
        self.threads.append(task)
