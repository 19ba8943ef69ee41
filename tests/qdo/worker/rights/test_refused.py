"""Workers whose key is revoked or limited while they run."""

from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry

from qdo.worker import exit_codes
from tests.qdo.consumer.test_sight import NONE, Badge, Office, backend, both, office, service
from tests.qdo.worker.conftest import Floor, quick, until

__all__ = ["backend", "office", "service"]

DISCOVER = {"discover": 0.1}


async def test_a_revoked_worker_hands_over_and_ends(
    office: Office, floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    """The other members take its partitions over at once; it ends by itself with the code of failures."""
    (orders,) = await office.queues("orders")
    registry = CollectorRegistry()
    badge = Badge(office.full)
    refused = await floor.worker(
        floor.note_async,
        orders,
        client=office.site.connect(transport=badge),
        settings=quick(stalled_after=1.0, commit_seconds=0.05),
        consuming=DISCOVER,
        registry=registry,
    )
    healthy = await floor.worker(floor.note_async, orders, consuming=DISCOVER)
    ending, going_on = floor.start(refused), floor.start(healthy)
    await until(lambda: len(refused.consumer.assignment) == len(healthy.consumer.assignment) == 1)
    badge.key = NONE
    await until(lambda: healthy.consumer.assignment == both(orders))
    await until(lambda: (registry.get_sample_value("qdo_refused_seconds") or 0) > 0)
    assert await asyncio.wait_for(ending, 60) == exit_codes.FAILED
    assert "the service has refused its credential" in caplog.text
    assert not going_on.done()
    await office.site.send(orders, 1)
    await until(lambda: floor.seen == ["1:1"])


async def test_a_worker_that_may_read_one_queue_of_two_no_more_ends(
    office: Office, floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    """If no other member may read it; the message that could not be read is there for the next worker."""
    caplog.set_level(logging.WARNING)
    orders, mails = await office.queues("orders", "mails")
    badge = Badge(office.full)
    worker = await floor.worker(
        floor.note_async,
        orders,
        mails,
        client=office.site.connect(transport=badge),
        settings=quick(stalled_after=1.0, commit_seconds=0.05),
        consuming=DISCOVER,
    )
    ending = floor.start(worker)
    await until(lambda: worker.consumer.assignment == both(orders) | both(mails))
    badge.key = office.key(orders)
    await until(lambda: worker.consumer.refused > 0)
    assert both(mails) <= worker.consumer.assignment
    await office.site.send(mails, 1)
    assert await asyncio.wait_for(ending, 60) == exit_codes.FAILED
    assert floor.seen == []
    fresh = await floor.worker(floor.note_async, mails, consuming=DISCOVER)
    await floor.serve_until(fresh, 1)
    assert floor.seen == ["1:1"]


async def test_a_refusal_that_passes_ends_no_worker(office: Office, floor: Floor) -> None:
    """Only one that lasts does; the time counts from the first refusal after the last answer."""
    (orders,) = await office.queues("orders")
    badge = Badge(office.full)
    worker = await floor.worker(
        floor.note_async,
        orders,
        client=office.site.connect(transport=badge),
        settings=quick(stalled_after=60.0, commit_seconds=0.05),
        consuming=DISCOVER,
    )
    floor.start(worker)
    await until(lambda: worker.consumer.assignment == both(orders))
    badge.key = NONE
    await until(lambda: worker.consumer.refused > 0)
    badge.key = office.full
    await until(lambda: worker.consumer.refused == 0)
    await office.site.send(orders, 1)
    await until(lambda: floor.seen == ["1:1"])


async def test_an_inbox_that_a_pattern_takes_ends_no_worker(
    office: Office, floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker says which queues it leaves to others, and works on the rest for as long as it likes."""
    caplog.set_level(logging.WARNING)
    orders, inbox = await office.queues("orders", "inbox")
    await office.site.client.update_queue(inbox.name, principals=["bid:ann@example.com"])
    badge = Badge(office.full)
    worker = await floor.worker(
        floor.note_async,
        patterns=(office.pattern,),
        client=office.site.connect(transport=badge),
        settings=quick(stalled_after=1.0, commit_seconds=0.05),
        consuming=DISCOVER,
    )
    working = floor.start(worker)
    await until(lambda: worker.consumer.unseen == {inbox.name})
    assert f"lacks rights for queues that match patterns: read for {inbox.name!r}" in caplog.text
    await asyncio.sleep(3.0)
    await office.site.send(orders, 1)
    await until(lambda: floor.seen == ["1:1"])
    assert not working.done()
