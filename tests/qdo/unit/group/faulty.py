"""A group on the simulated tree whose calls a test can fail or delay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from qdo.assignment import plan_assignment
from qdo.coordination import Coordinator, Listen, Member, Session, TargetAssignment, coordinator
from qdo.coordination.paths import GroupPaths
from qdo.coordination.records import decode_offset
from qdo.errors import CoordinationIncompatible, CoordinationLost, CoordinationRefused
from qdo.partitions import Partition, Queue
from tests.qdo.contract.simulated import SimulatedService
from tests.qdo.unit.group.owners import until
from tests.replacing import replace_in
from tests.sim.groups.tree import TreeLink

T = TypeVar("T")
SESSION_TIMEOUT = 600.0
CALLS = {
    method.__name__
    for method in (
        *(Session.assignment, Session.lead, Session.leader, Session.members, Session.target, Session.set_target),
        *(Session.set_sight, Session.retire, Session.claim, Session.release, Session.commit),
    )
}
Fault = Literal["refused", "in doubt", "expired", "stuck", "broken", "incompatible", "forbidden"]
"""What goes wrong with a call:

``refused``: it was not carried out, and may be tried again. ``in doubt``: it was carried out, but its answer is lost.
``expired``: the session ended before. ``stuck``: the answer does not come, and then the session ends. ``broken``: it
raises an unexpected error. ``incompatible``: a newer program wrote the data. ``forbidden``: it is not allowed.
"""
ERRORS: dict[Fault, Exception] = {
    "refused": CoordinationLost("not reached"),
    "broken": RuntimeError("nobody expects this"),
    "forbidden": CoordinationRefused("with these credentials"),
}


class FaultyCoordinator(Coordinator):
    """The coordinator of one member.

    Args:
        service: The tree.

    Attributes:
        calls: The names of all calls, in order.
        faults: Faults by the number of the call, or by its name (then once).
        held_up: Events that calls of a name wait for before they do anything.
        session: The latest session.
    """

    session: Session

    def __init__(self, service: SimulatedService) -> None:
        super().__init__("group", self._link, SESSION_TIMEOUT)
        self._service = service
        self.calls: list[str] = []
        self.faults: dict[int | str, Fault] = {}
        self.held_up: dict[str, asyncio.Event] = {}

    def _link(self, _max_blocked_seconds: float) -> TreeLink:
        return self._service.link(session_timeout=self.session_timeout)

    async def open(self) -> None:
        await self.call("open", super().open)

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> Session:
        async def begin() -> Session:
            with replace_in(coordinator, Session, FaultySession):
                session = await join(member, listen, replace=replace)
            assert isinstance(session, FaultySession)
            session.faulty = self
            self.session = session
            return session

        join = super().join
        return await self.call("join", begin)

    async def call(self, name: str, work: Callable[[], Awaitable[T]], session: Session | None = None) -> T:
        """Does the work with the fault for this call's number, or else for its name (then only once)."""
        fault = self.faults.pop(len(self.calls), None) or self.faults.pop(name, None)
        self.calls.append(name)
        if name in self.held_up:
            await self.held_up[name].wait()
        if fault in ERRORS and (session is not None or fault == "refused"):
            raise ERRORS[fault]
        if fault == "incompatible" and name in {"assignment", "members", "target"}:
            raise CoordinationIncompatible("a newer program was here")
        if session is not None and fault in {"expired", "stuck"}:
            self._service.tree.end(session.link.session)
            if fault == "stuck":
                await asyncio.Event().wait()
        result = await work()
        if fault == "in doubt":
            if isinstance(result, Session):
                await result.leave()
            raise CoordinationLost(name)
        return result


class FaultySession(Session):
    """A session whose calls fail or wait as its coordinator decides.

    Attributes:
        faulty: The coordinator, or None if nothing fails.
    """

    faulty: FaultyCoordinator | None = None

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        attribute = super().__getattribute__(name)
        if name not in CALLS or self.faulty is None:
            return attribute
        return lambda *arguments: self.faulty.call(name, lambda: attribute(*arguments), self)


class SimulatedGroup:
    """A group on its tree, with other members that do only what the test says.

    Attributes:
        service: The tree.
        coordinator: The coordinator of the member under test.
        others: Sessions of the others by id.
    """

    def __init__(self) -> None:
        self.service = SimulatedService()
        self.coordinator = FaultyCoordinator(self.service)
        self.others: dict[str, Session] = {}
        self._observer = self.service.coordinator()
        self._paths = GroupPaths("", "group")

    async def join(self, member: Member) -> Session:
        await self._observer.open()
        session = self.others[member.id] = await self._observer.join(member, lambda _: None)
        return session

    async def leave(self, name: str) -> None:
        await self.others.pop(name).leave()

    def owner_of(self, partition: Partition) -> int | None:
        node = self.service.tree.nodes.get(self._paths.owner(partition))
        return None if node is None else node.session

    def read_recorded(self, partition: Partition) -> str | None:
        node = self.service.tree.nodes[self._paths.offset(partition)]
        return decode_offset(node.data).id

    async def members(self) -> dict[str, Member]:
        await self._observer.open()
        return await self._observer.members()

    async def target(self) -> TargetAssignment | None:
        await self._observer.open()
        return await self._observer.target()

    async def is_right(self, queues: dict[Queue, int]) -> bool:
        """Returns whether the target is the one that a plan of the present members and these queues gives."""
        target = await self.target()
        return target == plan_assignment(await self.members(), queues, target, 0.0, 0.0).target

    async def wait_for_calls(self, name: str, times: int = 1) -> None:
        await until(lambda: self.coordinator.calls.count(name) >= times)
