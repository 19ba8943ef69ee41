"""Groups whose members have keys for different queues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from hashlib import sha256

import httpx2
import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.group import discovery as queue_discovery
from qdo.group.records import Member, TargetAssignment
from qdo.partitions import Partition, Queue
from queuey.model.messages import Scope
from queuey.storage import Store, bridge
from queuey.storage.sqlite import open_store
from tests.qdo.consumer.conftest import System, until
from tests.qdo.contract.events import RecordedEvents
from tests.replacing import replace_in
from tests.servers.served import Served

LOOK_UP_SECONDS = 0.1
"""Seconds between look-ups."""
INVALID_KEY = "no-key-at-all"


class KeyedTransport(httpx2.AsyncHTTPTransport):
    """Sends requests with a key that a test may replace, as if the key had been limited or revoked.

    It may refuse lists of queues itself.

    Attributes:
        key: The key.
        lists: The service says which queues there are.
    """

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.lists = True

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if not self.lists and request.method == "GET" and request.url.path.endswith("/queuey/"):
            return httpx2.Response(403, json={"error": "not_allowed", "message": "no list"})
        request.headers["Authorization"] = f"Application {self.key}"
        return await super().handle_async_request(request)


class GroupWithKeys:
    """Makes keys, and members that have them.

    Attributes:
        system: The service, the coordination, and a client apart from the members.
        full: A key without limits.
        revoked: The partitions that were revoked, by member.
        given: The partitions that were assigned, by member.
    """

    def __init__(self, system: System, store: Store) -> None:
        self.system = system
        self.full = str(system.profile.key)
        self.revoked: dict[str, set[Partition]] = {}
        self.given: dict[str, set[Partition]] = {}
        self._store = store
        self._prefix = secrets.token_hex(4)

    def key(self, *queues: Queue, allow: str = "read,claim") -> str:
        secret = secrets.token_hex(16)
        scope = Scope(tuple(allow.split(",")), tuple(queue.name for queue in queues))
        bridge.run(self._store.applications.add_key("queuey", sha256(secret.encode()).digest(), scope=scope))
        return secret

    async def queues(self, *names: str, partitions: int = 2) -> list[Queue]:
        queues_made = [self.system.refer_to(f"{self._prefix}-{name}") for name in names]
        for queue in queues_made:
            await self.system.client.create_queue(queue.name, partitions=partitions)
        return queues_made

    @property
    def pattern(self) -> str:
        return f"{self._prefix}-*"

    async def join(
        self, name: str, key: str, *queues: Queue, patterns: tuple[str, ...] = ()
    ) -> tuple[AsyncConsumer, KeyedTransport]:
        transport = KeyedTransport(key)
        client = self.system.connect(transport=transport)
        self.revoked[name], self.given[name] = set(), set()
        consumer = await self.system.consumer(
            *queues,
            client=client,
            member=name,
            patterns=patterns,
            discover=LOOK_UP_SECONDS,
            owns=(),
            callbacks={"on_revoke": self.revoked[name].update, "on_assign": self.given[name].update},
        )
        return consumer, transport


@pytest.fixture
async def group(system: System, running: Served) -> AsyncIterator[GroupWithKeys]:
    with contextlib.closing(open_store(running.data)) as store:
        yield GroupWithKeys(system, store)


def partitions_of(queue: Queue) -> set[Partition]:
    return {Partition(queue, 1), Partition(queue, 2)}


def owns_exactly(consumer: AsyncConsumer, *queues: Queue) -> Callable[[], bool]:
    expected = set().union(*map(partitions_of, queues))
    return lambda: consumer.assignment == expected


async def test_what_nobody_sees_any_more_stays_until_it_is_gone(
    group: GroupWithKeys, caplog: pytest.LogCaptureFixture
) -> None:
    """Limiting a running member's key takes no partition away if no other member may have it; it is logged."""
    caplog.set_level(logging.WARNING, "qdo.consumer")
    orders, mails = await group.queues("orders", "mails")
    leader, _ = await group.join("a", group.key(orders), orders, mails)
    other, transport = await group.join("b", group.full, orders, mails)
    await until(lambda: partitions_of(mails) <= other.assignment and len(other.assignment | leader.assignment) == 4)
    transport.key = group.key(orders)
    await until(lambda: leader.unseen == {mails.name})
    assert f"no subscribed member may see these queues: {mails.name}" in caplog.text
    assert partitions_of(mails) <= other.assignment
    await group.system.client.delete_queue(mails.name)
    await until(lambda: not partitions_of(mails) & other.assignment and not leader.unseen)
    await until(lambda: len(leader.assignment | other.assignment) == 2)  # partitions of orders move meanwhile


async def test_a_leader_of_another_version_takes_nothing_away(
    group: GroupWithKeys, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that cannot read what the leader stored about its view keeps its partitions."""
    caplog.set_level(logging.WARNING, "qdo.consumer")
    (orders,) = await group.queues("orders")
    leader = await (await group.system.coordinator()).join(Member("a"), RecordedEvents())
    assert await leader.lead()
    member, _ = await group.join("b", group.full, orders)
    assert await leader.set_target(TargetAssignment(dict.fromkeys(partitions_of(orders), "b")), -1)
    await until(owns_exactly(member, orders))
    await group.system.service.write_member("group", "a", b"qdo9=?")
    other = await (await group.system.coordinator()).join(
        Member("c"), RecordedEvents()
    )  # so that the members look queues up again
    await until(lambda: "the same version of Qdo" in caplog.text or bool(group.revoked["b"]))
    assert not group.revoked["b"]
    assert member.assignment == partitions_of(orders)
    for session in (leader, other):
        await session.leave()


async def test_what_a_pattern_takes_and_its_key_may_not_read_is_left_alone(group: GroupWithKeys) -> None:
    """A user's inbox is logged as unseen, does not end the worker, and is taken once it may be read."""
    orders, inbox = await group.queues("orders", "inbox")
    await group.system.client.update_queue(inbox.name, principals=["bid:ann@example.com"])
    members = [(await group.join(name, group.full, patterns=(group.pattern,)))[0] for name in ("a", "b")]
    await until(lambda: any(consumer.unseen == {inbox.name} for consumer in members))
    await until(lambda: partitions_of(orders) <= set().union(*(consumer.assignment for consumer in members)))
    assert [consumer.refused for consumer in members] == [0.0, 0.0]
    await group.system.client.update_queue(inbox.name, principals=[])
    await until(lambda: not any(consumer.unseen for consumer in members))
    await until(
        lambda: (
            set().union(*(consumer.assignment for consumer in members)) == partitions_of(orders) | partitions_of(inbox)
        )
    )
    await group.system.send(inbox, 1)
    batches = [await asyncio.wait_for(consumer.poll(timeout=3.0), 60) for consumer in members]
    assert sum(len(batch.messages) for each in batches for batch in each) == 1


async def test_what_a_member_says_of_its_sight_is_bounded(
    group: GroupWithKeys, caplog: pytest.LogCaptureFixture
) -> None:
    """A member's report of visible and unreadable queues is bounded, because both are stored in one node."""
    orders, inbox, _ = await group.queues("orders", "inbox", "mails")
    await group.system.client.update_queue(inbox.name, principals=["bid:ann@example.com"])
    with replace_in(queue_discovery, queue_discovery.MAX_REPORTED_QUEUES, 1):
        await group.join("a", group.key(orders), orders)
        await group.join("b", group.full, patterns=(group.pattern,))
        await until(lambda: f"reads of {inbox.name} fail" in caplog.text)
        await asyncio.sleep(10 * LOOK_UP_SECONDS)
        sight = (await (await group.system.coordinator()).members())["b"].sight
    assert sight is not None
    assert len(sight.others) + len(sight.hidden) == 1
