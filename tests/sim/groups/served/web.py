"""A process of the service: the use cases of groups, and heartbeats that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from queuey.access.queue_access import QueueAccess, find_queue
from queuey.api.groups import Heartbeat
from queuey.groups.groups import GroupUseCases
from queuey.groups.offsets import OffsetUseCases
from queuey.model.errors import NotAllowed
from queuey.model.messages import OffsetChange, Queue
from queuey.model.rights import MemberCredential, is_allowed
from queuey.runtime.waiters import Waiter, Watchers
from queuey.storage.deadlines import Done
from tests.sim.groups.served.processes import GroupCore, Machine
from tests.sim.groups.served.store import GroupStore
from tests.sim.groups.served.stored import APPLICATION, GROUP
from tests.sim.world import begin

if TYPE_CHECKING:
    from tests.sim.groups.served.stored import Stored
    from tests.sim.world import World

CHECK = 5.0
"""Seconds between checks of the credential of a waiting heartbeat."""


class Surroundings(Protocol):
    """What the processes of a service have in common."""

    world: World
    stored: Stored

    def rights(self, credential: MemberCredential) -> MemberCredential | None:
        """Returns the credential with its present rights, or None if it was revoked."""


class Web:
    """A process of the service. It restarts after a crash.

    Args:
        storm: What it shares with other processes.
        offset: Seconds by which its clock is ahead.
    """

    def __init__(self, storm: Surroundings, offset: float) -> None:
        self.storm = storm
        self.process = Machine(storm.world, offset)
        self.start()

    def start(self) -> None:
        self.core = GroupCore(self.process)
        self.store = GroupStore(self.storm.stored, self.process)
        self.watchers = Watchers()
        with self.core.loop.running():
            self.groups = GroupUseCases(self.store.store, self.core, self.read_rights)
            self.offsets = OffsetUseCases(self.store.store, self.groups.require_inactive)

    def crash(self) -> None:
        self.process.crash()
        self.start()

    async def read_rights(self, credential: MemberCredential) -> MemberCredential | None:
        return self.storm.rights(credential)

    def run(self, call: Any, done: Done) -> Callable[[], None]:  # noqa: ANN401 - a coroutine
        return begin(self.core, call, done)

    def heartbeat(self, member: str, credential: MemberCredential, beat: Heartbeat, done: Done) -> Callable[[], None]:
        poll = HeartbeatPoll(self, member, credential, beat, done)
        poll.attempt()
        return poll.leave

    async def commit(
        self,
        name: str,
        member: str,
        credential: MemberCredential,
        changes: Sequence[OffsetChange],
        epochs: Mapping[int, int],
        notes: Mapping[int, bytes | None],
    ) -> Any:  # noqa: ANN401 - as the use case has it
        access = await self._access(name, credential)
        return await self.groups.commit(access, GROUP, member, credential, changes, epochs, notes)

    async def record(self, name: str, credential: MemberCredential, changes: Sequence[OffsetChange]) -> Any:  # noqa: ANN401
        access = await self._access(name, credential)
        return await self.offsets.record(access, GROUP, changes)

    async def forget(self, name: str, credential: MemberCredential) -> Any:  # noqa: ANN401
        access = await self._access(name, credential)
        return await self.offsets.forget(access, GROUP)

    async def _access(self, name: str, credential: MemberCredential) -> QueueAccess:
        """Returns access to a queue. Raises NotAllowed unless the credential may read now; each use checks again."""

        async def check(queue: Queue) -> None:
            present = self.storm.rights(credential)
            if present is None or not is_allowed(queue, present.caller, "read"):
                raise NotAllowed(name)

        store = self.store.store
        queue = await find_queue(store, APPLICATION, name)
        await check(queue)
        return QueueAccess(store, queue, check)


class HeartbeatPoll(Waiter):
    """A heartbeat, which may wait.

    Args:
        web: The process that received it.
        member: The member id in it.
        credential: The sender's credential.
        beat: Its content.
        done: Called with the answer.
    """

    __slots__ = ("_attempting", "_beat", "_credential", "_done", "_end", "_member", "_next_check", "_web", "_woken")

    def __init__(self, web: Web, member: str, credential: MemberCredential, beat: Heartbeat, done: Done) -> None:
        super().__init__(web.watchers)
        self._web = web
        self._member = member
        self._credential = credential
        self._beat = beat
        self._done: Done | None = done
        self._attempting = self._woken = False
        now = web.process.world.now
        self._end = now + beat.wait
        self._next_check = now + CHECK
        web.process.soon(beat.wait, self._retry_if_due)
        if beat.wait > CHECK:
            web.process.soon(CHECK, self._wake_if_rights_changed)

    def attempt(self) -> None:
        """Tries a heartbeat. If the key was revoked, the member leaves instead and gets an error."""
        self._attempting, self._woken = True, False
        web = self._web
        must_answer = web.process.world.now >= self._end
        present = web.storm.rights(self._credential)
        if present is None:  # as a view does after a refused attempt
            call: Any = web.groups.leave(
                APPLICATION, GROUP, self._member, self._credential, returns=False, is_own_request=False
            )
            begin(web.core, call, lambda _value, _error: self._answer_once(None, NotAllowed("the key was revoked")))
            return
        call = web.groups.heartbeat(
            APPLICATION, GROUP, self._member, present, self._beat, self, must_answer=must_answer
        )
        begin(web.core, call, self._end_attempt)

    def _end_attempt(self, answer: object, error: Exception | None) -> None:
        self._attempting = False
        if answer is not None or error is not None:
            self._answer_once(answer, error)
            return
        self.attempt_failed()
        self._retry_if_due()

    def _answer_once(self, answer: object, error: Exception | None) -> None:
        """Answers once and stops watching. Does nothing after the client has left."""
        done, self._done = self._done, None
        if done is not None:
            self.close()
            done(answer, error)

    def wake(self, qid: int | None = None) -> None:
        self._woken = True
        self._web.process.soon(0.0, self._retry_if_due)

    def _retry_if_due(self) -> None:
        if (
            self._done is not None
            and not self._attempting
            and (self._woken or self._web.process.world.now >= self._end)
        ):
            self.attempt()

    def _wake_if_rights_changed(self) -> None:
        if self._done is not None and self._web.storm.rights(self._credential) != self._credential:
            self.wake()

    def leave(self) -> None:
        self._done = None
        self.close()
