"""A worker in a process of its own: ``python -m tests.qdo.faults.member``, with its options in the environment."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from pathlib import Path

from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import QdoError
from qdo.group.opening import open_coordinator
from qdo.group.protocol import Coordinator
from qdo.group.service import ServiceCoordinator
from qdo.partitions import Partition
from qdo.settings import ConsumerSettings, Retry, WorkerSettings
from qdo.worker.worker import Worker
from queuey.client import AsyncClient
from tests.harness.checking.records import Assigned, Gone, place_of
from tests.harness.history import Journal, now, record_stalls
from tests.qdo.faults.job import Job, from_environment
from tests.qdo.faults.recording import record

STALLED = 0.12
"""Min seconds without running threads that count as a fault."""


class Notices:
    """The consumer's callbacks, which record their calls."""

    def __init__(self, journal: Journal, worker: str) -> None:
        self._journal = journal
        self._worker = worker
        self.consumer: AsyncConsumer | None = None

    def assigned(self, partitions: frozenset[Partition]) -> None:
        assert self.consumer is not None
        offsets = {place_of(each): self.consumer.committed(each) for each in partitions}
        self._journal.add(Assigned(now(), self._worker, offsets))

    def revoked(self, partitions: frozenset[Partition]) -> None:
        self._journal.add(Gone(now(), self._worker, "revoked", [place_of(each) for each in partitions]))

    def lost(self, partitions: frozenset[Partition]) -> None:
        self._journal.add(Gone(now(), self._worker, "lost", [place_of(each) for each in partitions]))


def make_worker(job: Job, client: AsyncClient, coordinator: Coordinator, journal: Journal) -> Worker:
    notices = Notices(journal, job.worker)
    consumer = AsyncConsumer(
        client,
        coordinator,
        patterns=job.patterns,
        member=job.member,
        settings=ConsumerSettings(
            page=100, prefetch_messages=500, wait=2.0, discover=1.0, grace=job.grace, revoke_timeout=job.revoke_timeout
        ),
        on_assign=notices.assigned,
        on_revoke=notices.revoked,
        on_lost=notices.lost,
    )
    notices.consumer = consumer
    settings = WorkerSettings(
        threads=8,
        processes=2 if job.runs == "processes" else 0,
        batch=100,
        slice=job.slice,
        commit_messages=200,
        commit_seconds=0.2,
        drain=10.0,
        retry=Retry(attempts=job.attempts, base=0.05, cap=0.1),
    )
    handler = "waiting" if job.runs == "tasks" else "plain"
    place = "tests.qdo.faults.handlers"
    return Worker(f"{place}:{handler}", consumer, context=f"{place}:notes", settings=settings)


async def serve(job: Job) -> int:
    """Serves until it is told to stop, and records stalls; returns the exit code, or 1 if it cannot take part."""
    journal = Journal(Path(job.journal))
    stalls = threading.Event(), journal.add, job.worker, STALLED
    threading.Thread(target=record_stalls, args=stalls, name="stalls", daemon=True).start()
    async with AsyncClient(job.service, key=job.key, application=job.application) as client:
        coordinator = coordinator_of(job, client)
        record(coordinator, journal, job.worker)
        try:
            return await make_worker(job, client, coordinator, journal).serve(signals=True)
        except QdoError as error:
            logging.getLogger(__name__).critical("cannot take part: %r", error)
            return 1
        finally:
            await coordinator.close()


def coordinator_of(job: Job, client: AsyncClient) -> Coordinator:
    if job.coordination:
        return open_coordinator(job.coordination, job.group, session_timeout=job.session_timeout)
    return ServiceCoordinator(
        client, job.group, session_timeout=job.session_timeout, revoke_timeout=job.revoke_timeout, grace=job.grace
    )


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return asyncio.run(serve(from_environment()))


if __name__ == "__main__":
    sys.exit(main())
