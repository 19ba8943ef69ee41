"""The use cases of all rooms together, which all APIs call, and the application that serves them.

Use cases of a queue take a :class:`~queuey.access.queue_access.QueueAccess`: its row together with the caller's check.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from queuey.access.authorization import Authenticator, Authorization
from queuey.access.issued_credentials import Keys, Sessions
from queuey.access.operations import Operation
from queuey.access.queue_access import find_queue
from queuey.claims.claims import ClaimUseCases
from queuey.claims.expiry_records import ExpiryRecords
from queuey.groups.groups import GroupUseCases
from queuey.groups.offsets import OffsetUseCases
from queuey.groups.state_cache import ReadRights, keep_rights
from queuey.messages.names import NameUseCases
from queuey.messages.posts import MessageUseCases
from queuey.messages.range_reads import Reader
from queuey.messages.read_marks import UnreadUseCases
from queuey.messages.streams import OpenStreams
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import Queue
from queuey.moves.moves import MoveUseCases
from queuey.operations.audit_log import AuditLog
from queuey.operations.explanations import Explaining
from queuey.operations.message_search import Browsing
from queuey.operations.redrive import Redriving
from queuey.queues.queues import Queues
from queuey.runtime.arrival_news import News
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.workers import WorkerIdentity, Workers
from queuey.schedules.schedules import ScheduleUseCases
from queuey.storage import Store
from queuey.web.endpoint import Endpoint, Resources
from queuey.web.requests import PathProtocol


class Service:
    """All use cases over one store.

    Args:
        store: The store; the caller closes it.
        stopping: Set when the service ends; long polls are then answered at once.
        rights: Returns a credential with its current rights, for members of groups. By default they never change.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits | None = None,
        *,
        metrics: Metrics | None = None,
        stopping: threading.Event | None = None,
        core: Core | None = None,
        rights: ReadRights = keep_rights,
    ) -> None:
        self.store = store
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self.stopping = stopping or threading.Event()
        self.core = core or Core()
        self.workers = Workers()
        self.news = News(self.workers, store)
        self.queues = Queues(store, self.limits)
        self.reader = Reader(store, self.limits, self.metrics, self.core)
        self.streams = OpenStreams(self.reader)
        self.unread = UnreadUseCases(store, self.core, self.streams.notify)
        self.groups = GroupUseCases(store, self.core, rights, self.workers)
        self.offsets = OffsetUseCases(store, self.groups.require_inactive)
        self.claims = ClaimUseCases(
            store,
            self.limits,
            self.metrics,
            watchers=self.reader.watchers,
            core=self.core,
            workers=self.workers,
            make_expiry=lambda claims: ExpiryRecords(store, claims, self.core, self.stopping),
        )
        notify_removed = self.streams.notify_removed
        self.messages = MessageUseCases(
            store, self.limits, self.metrics, self.core, effects=self.claims, notify_removed=notify_removed
        )
        self.names = NameUseCases(store, self.limits, self.metrics, self.claims, notify_removed)
        self.explaining = Explaining(store, self.limits, self.queues, self.claims, self.offsets)
        self.moves = MoveUseCases(store, self.claims, self.stopping)
        self.schedules = ScheduleUseCases(store, self.messages, self.core, self.stopping)
        # Messages shown to people do not count as delivered.
        uncounted = Reader(store, self.limits, Metrics(), self.core)
        self.browsing = Browsing(uncounted, self.core)
        self.sessions = Sessions(store)
        self.audit = AuditLog(store, self.messages, uncounted)
        self.keys = Keys(store.applications)
        self.redriving = Redriving(self.messages, uncounted)

    def join(self, identity: WorkerIdentity) -> None:
        self.workers.join(identity)
        self.news.start()

    def start_background_work(self) -> None:
        """Starts the tasks that run moves, schedules and expiry, or wakes them. May be called again."""
        self.moves.start_background_work()
        self.schedules.start_background_work()
        self.claims.start_background_work()

    async def end(self, seconds: float) -> None:
        """Stops the background work and the groups, within ``seconds``. Must run in the loop's thread.

        Sets :attr:`stopping` first, which answers waiting requests. Other processes continue running moves at once.
        """
        self.stopping.set()
        tasks = [task for task in (self.moves.end(), self.schedules.end(), self.claims.end()) if task is not None]
        await asyncio.wait([*tasks, asyncio.ensure_future(self.groups.end())], timeout=seconds)

    def leave(self, seconds: float) -> None:
        """Leaves the other worker processes, after answering their open questions for at most ``seconds``."""
        self.news.close()
        self.workers.leave(seconds)

    async def statistics(self) -> dict[str, float]:
        statistics = {
            **self.messages.statistics(),
            **self.claims.statistics(),
            **self.moves.statistics(),
            **self.schedules.statistics(),
            **self.names.statistics(),
            **self.groups.statistics(),
            "reads_waiting": float(self.reader.watchers.count(for_all=True)),
            "streams_open": float(len(self.streams.all)),
            "loop_longest_turn_seconds": self.core.longest_turn,
        }
        with suppress(StoreUnavailable):
            statistics |= await self.store.statistics()
        return statistics

    async def find(self, application: str, name: str) -> Queue:
        return await find_queue(self.store, application, name)


@dataclass(kw_only=True)
class App:
    """The application, as a gateway serves it. An include finds it at ``config.registry.app``.

    Attributes:
        shown_backlogs: Applications and patterns of their queues whose backlog is shown at ``/metrics``.
        shown_lags: Applications and patterns of their queues whose consumer groups' lag is shown there.
        own_api: Version 1 of the API is served. If False, an include has all paths but those for operators.
        operations: Operations of version 1, each with its view's method; also of a version that is not served.
        endpoints: Endpoints by the names of their routes. Includes add some (``config.add_resource``).
        facades: The facades and the console. Their includes append them.
        resources: Finds resources by path; set when all includes have been called.
    """

    service: Service
    authenticate: Authenticator
    authorization: Authorization
    shown_backlogs: Sequence[tuple[str, str]]
    shown_lags: Sequence[tuple[str, str]]
    own_api: bool
    on_loopback: bool
    publish_metrics: bool
    operations: Sequence[tuple[Operation, Callable[..., Any]]] = ()
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    facades: list[PathProtocol] = field(default_factory=list)
    resources: Resources = field(init=False)
