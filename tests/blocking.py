"""Claims for callers that block, as threads of a server without an event loop make them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from queuey.api.jobs import JobInfo
from queuey.claims.acts import JobStanding
from queuey.claims.receipts import ClaimReceipt, Settlement
from queuey.claims.state import State
from queuey.ids import Position
from queuey.messages import Location, Message, PostResult, Queue
from queuey.service import ClaimDelivery, ClaimUseCases, Draft, QueueAccess, Service
from queuey.service.claims import ReleaseReason
from queuey.service.claims.jobs import JobPoll
from queuey.service.claims.move_turns import MoveOrder, MoveTurn
from queuey.service.claims.results import JobResult
from queuey.service.names import Changed
from queuey.storage.calls import LoopCalls

T = TypeVar("T")


class BlockingClaims:
    """Blocking calls of :class:`~queuey.service.ClaimUseCases`.

    Args:
        claims: The use cases to call.
    """

    def __init__(self, claims: ClaimUseCases) -> None:
        self._claims = claims

    def claim(self, access: QueueAccess, **asked: Any) -> list[ClaimDelivery]:  # noqa: ANN401 - as the use case has it
        return self._claims.core.run(access.apply(lambda queue: self._claims.claim(queue, **asked)))

    def acknowledge(
        self,
        access: QueueAccess,
        receipts: Sequence[ClaimReceipt],
        results: Mapping[ClaimReceipt, JobResult] | None = None,
    ) -> list[Settlement]:
        return self._claims.core.run(access.apply(lambda queue: self._claims.acknowledge(queue, receipts, results)))

    def job(self, access: QueueAccess, place: Location) -> JobInfo:
        poll = JobPoll([place])
        answer = self._claims.core.run(access.apply(lambda queue: self._claims.jobs.read_answer(queue, poll)))
        return answer.infos[0]

    def renew(self, access: QueueAccess, receipts: Sequence[ClaimReceipt], ttl: float) -> list[Settlement]:
        return self._claims.core.run(access.apply(lambda queue: self._claims.renew(queue, receipts, ttl)))

    def release(
        self,
        access: QueueAccess,
        receipts: Sequence[ClaimReceipt],
        delay: float | None = None,
        reason: ReleaseReason | None = None,
        *,
        retry: bool = True,
        begun: bool = True,
    ) -> list[Settlement]:
        return self._claims.core.run(
            access.apply(lambda queue: self._claims.release(queue, receipts, delay, reason, retry=retry, begun=begun))
        )

    def set_states(self, access: QueueAccess, states: Mapping[ClaimReceipt, bytes]) -> list[Settlement]:
        return self._claims.core.run(access.apply(lambda queue: self._claims.set_states(queue, states)))

    def cancel(self, access: QueueAccess, position: Position, partition: int | None = 1) -> JobStanding:
        return self._claims.core.run(access.apply(lambda queue: self._claims.cancel(queue, partition, position)))

    def make_available_now(self, access: QueueAccess, position: Position, partition: int | None = 1) -> JobStanding:
        return self._claims.core.run(
            access.apply(lambda queue: self._claims.make_available_now(queue, partition, position))
        )

    def release_all(self, access: QueueAccess) -> None:
        self._claims.core.run(access.apply(self._claims.release_all))

    def look_at(
        self, queue: Queue, look: Callable[[State, int], T], numbers: Sequence[int] | None = None
    ) -> dict[int, T]:
        return self._claims.core.run(self._claims.query_states(queue, look, numbers))

    def is_done(self, queue: Queue, location: Location) -> bool:
        return self._claims.core.run(self._claims.is_done(queue, location))

    def supersede(self, queue: Queue, location: Location) -> None:
        self._claims.core.run(self._claims.supersede(queue, location))

    def turn(self, queue: Queue, partition: int, order: MoveOrder) -> MoveTurn:
        return self._claims.core.run(self._claims.take_move_turn(queue, partition, order))


class BlockingNames:
    """Blocking calls of :class:`~queuey.service.names.NameUseCases`.

    Args:
        service: The service with the names.
    """

    def __init__(self, service: Service) -> None:
        self._core = service.core
        self._names = service.names

    def create(self, access: QueueAccess, name: str, draft: Draft) -> Changed:
        return self._core.run(access.apply(lambda queue: self._names.create(queue, name, draft)))

    def replace(self, access: QueueAccess, name: str, draft: Draft) -> Changed:
        return self._core.run(access.apply(lambda queue: self._names.replace(queue, name, draft)))

    def delete(self, access: QueueAccess, name: str) -> None:
        self._core.run(access.apply(lambda queue: self._names.delete(queue, name)))

    def fetch(self, access: QueueAccess, name: str) -> Message | None:
        return self._core.run(access.apply(lambda queue: self._names.fetch(queue, name)))


def adopt_own_loop(service: Service) -> None:
    """Gives a service a loop of its own, so that another service's loop may wait for it. Its thread never ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    service.core.adopt(LoopCalls(loop))


def post(service: Service, access: QueueAccess, drafts: Sequence[Draft]) -> PostResult:
    return service.core.run(access.apply(lambda queue: service.messages.post(queue, drafts)))


def blocking(claims: ClaimUseCases) -> BlockingClaims:
    return BlockingClaims(claims)
