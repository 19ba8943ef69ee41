"""The cost of claims in calls of the store does not grow with acknowledged messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from queuey.messages import LogEntry, Page, Queue, Slice
from queuey.service import QueueAccess, Service
from queuey.storage import ClaimLogs, Messages, Store, bridge
from tests.blocking import blocking
from tests.contract.samples import make_queue, new_message
from tests.interposed_store import InterposedStore

ROUND = 1000
"""Max messages of one claim."""


class Counted(InterposedStore):
    """Counts reads of slices, read messages, and other calls of the store for claims."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: Counter[str] = Counter()
        self.instead(Messages.read, self._read)
        self.instead(ClaimLogs.append_entry, self._append_entry)
        for method in (ClaimLogs.read_log, Messages.fetch):
            self.before(method, partial(self._count, method.__name__))

    def _count(self, what: str) -> None:
        self.asked[what] += 1

    async def _read(self, queue: Queue, parts: Sequence[Slice]) -> list[Page]:
        pages = await self._store.messages.read(queue, parts)
        self.asked["reads"] += len(parts)
        self.asked["messages read"] += sum(len(page.messages) for page in pages)
        return pages

    async def _append_entry(self, queue: Queue, partition: int, entry: LogEntry, **more: int | None) -> bool:
        self.asked["entries"] += 1
        self.asked["bytes appended"] += len(entry.body)
        return await self._store.claim_logs.append_entry(queue, partition, entry, **more)


def post_and_acknowledge(service: Service, access: QueueAccess, count: int) -> None:
    for _ in range(count // ROUND):
        bridge.run(service.store.messages.append(access.queue, [new_message("x") for _ in range(ROUND)]))
        claimed = blocking(service.claims).claim(access, limit=ROUND, ttl=600)
        assert len(claimed) == ROUND
        blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])


@pytest.mark.needs("exact_horizon")
@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_what_was_acknowledged_costs_nothing(store: Store, count: int, stuck: bool) -> None:  # noqa: FBT001
    """After many acknowledged messages a claim makes as many calls as the first, also if one stays claimed."""
    counted = Counted(store)
    service = Service(counted.store)
    queue = make_queue(store)
    access = service.enter(queue, lambda _queue: None)
    if stuck:
        bridge.run(store.messages.append(queue, [new_message("never acknowledged")]))
        assert len(blocking(service.claims).claim(access, limit=1, ttl=43_200)) == 1

    def cost_of_one() -> dict[str, int]:
        counted.asked.clear()
        post_and_acknowledge(service, access, ROUND)
        return dict(counted.asked)

    cost_of_one()
    first = cost_of_one()
    post_and_acknowledge(service, access, count)
    last = cost_of_one()
    bytes_first, bytes_last = first.pop("bytes appended"), last.pop("bytes appended")
    assert last == first
    assert first["messages read"] <= ROUND + 1
    assert first["entries"] == 2
    assert bytes_last <= 1.1 * bytes_first
    assert service.claims.count_claims(access).partitions[1].claimed == stuck
