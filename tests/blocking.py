"""Claims for callers that block, as threads of a server without an event loop make them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from queuey.access.queue_access import QueueAccess
from queuey.api.jobs import JobInfo
from queuey.app.service import Service
from queuey.claims.claims import ClaimUseCases
from queuey.claims.jobs import JobPoll
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.log.move_turns import MoveOrder, MoveTurn
from queuey.claims.rules.operator_acts import JobStanding
from queuey.claims.rules.partition_state import State
from queuey.claims.rules.receipts import ReceiptOutcome
from queuey.messages.names import Changed, NameUseCases
from queuey.messages.posts import Draft
from queuey.model.ids import Position
from queuey.model.messages import Location, Message, PostResult, Queue
from queuey.runtime.event_loop import Core
from queuey.storage.deadlines import LoopCalls

T = TypeVar("T")


class Blocking:
    """Calls coroutines of use cases and waits for their results.

    A method that is given an access, and not a queue, calls the coroutine with its queue.

    Args:
        use_cases: Claims or names.
        core: Where their coroutines run.
    """

    def __init__(self, use_cases: ClaimUseCases | NameUseCases, core: Core) -> None:
        self._use_cases = use_cases
        self._core = core

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._use_cases, name)

        def call(target: QueueAccess | Queue, *values: object, **options: object) -> Any:  # noqa: ANN401 - its result
            if isinstance(target, QueueAccess):
                return self._core.run(target.apply(lambda queue: method(queue, *values, **options)))
            return self._core.run(method(target, *values, **options))

        return call


class BlockingClaims(Blocking):
    """Blocking calls of :class:`~queuey.claims.claims.ClaimUseCases`."""

    claim: Callable[..., list[ClaimDelivery]]
    acknowledge: Callable[..., list[ReceiptOutcome]]
    renew: Callable[..., list[ReceiptOutcome]]
    release: Callable[..., list[ReceiptOutcome]]
    set_states: Callable[..., list[ReceiptOutcome]]
    is_done: Callable[..., bool]

    def __init__(self, claims: ClaimUseCases) -> None:
        super().__init__(claims, claims.core)
        self._claims = claims

    def job(self, access: QueueAccess, place: Location) -> JobInfo:
        poll = JobPoll([place])
        answer = self._core.run(access.apply(lambda queue: self._claims.jobs.read_answer(queue, poll)))
        return answer.infos[0]

    def cancel(self, access: QueueAccess, position: Position, partition: int | None = 1) -> JobStanding:
        return self._core.run(access.apply(lambda queue: self._claims.jobs.cancel(queue, partition, position)))

    def make_available_now(self, access: QueueAccess, position: Position, partition: int | None = 1) -> JobStanding:
        return self._core.run(
            access.apply(lambda queue: self._claims.jobs.make_available_now(queue, partition, position))
        )

    def look_at(self, queue: Queue, look: Callable[[State, int], T]) -> dict[int, T]:
        return self._core.run(self._claims.logs.query_states(queue, look))

    def turn(self, queue: Queue, partition: int, order: MoveOrder) -> MoveTurn:
        return self._core.run(self._claims.take_move_turn(queue, partition, order))


class BlockingNames(Blocking):
    """Blocking calls of :class:`~queuey.messages.names.NameUseCases`."""

    create: Callable[..., Changed]
    replace: Callable[..., Changed]
    delete: Callable[..., None]
    fetch: Callable[..., Message | None]

    def __init__(self, service: Service) -> None:
        super().__init__(service.names, service.core)


def adopt_own_loop(service: Service) -> None:
    """Gives a service a loop of its own, so that another service's loop may wait for it. Its thread never ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    service.core.adopt(LoopCalls(loop))


def post(service: Service, access: QueueAccess, drafts: Sequence[Draft]) -> PostResult:
    return service.core.run(access.apply(lambda queue: service.messages.post(queue, drafts)))


def blocking(claims: ClaimUseCases) -> BlockingClaims:
    return BlockingClaims(claims)
