"""One real Cassandra node, one ZooKeeper server and one service, used through their command lines and clients."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from qdo import Consumer, ConsumerSettings, open_coordinator
from queuey.client import AsyncClient, Claimed, Client, Message
from tests.servers.plugin import Cassandra, ZooKeeper, unique_name
from tests.servers.served import Served, run_queuey
from tests.waiting import until

PARTITIONS = 4
SENT = 40


def queuey(*arguments: str) -> str:
    ended = run_queuey(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def url(cassandra: Cassandra) -> str:
    """The URL of a keyspace, migrated by the command."""
    url = f"cassandra://{','.join(cassandra.contact_points)}:{cassandra.port}/{unique_name('smoke')}"
    queuey("migrate", "--store", url, "--replication", "1")
    return url


@pytest.fixture(scope="module")
def connection(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The arguments for clients of a service on this keyspace. Checks that the service ends cleanly."""
    secret = json.loads(queuey("app", "create", "smoke", "--store", url, "--json"))["secret"]
    options = ["--store", url]
    with Served(tmp_path_factory.mktemp("smoke"), options) as service:
        yield {"url": f"http://127.0.0.1:{service.port}", "key": secret, "application": "smoke"}
        assert service.end(signal.SIGTERM) == 0, service.output
        assert "Traceback" not in service.output


@pytest.fixture(scope="module")
def client(connection: dict[str, Any]) -> Iterator[Client]:
    with Client(**connection) as client:
        yield client


def read(client: Client, queue: str, count: int) -> list[Message]:
    """Reads from the beginning until the read delay has passed for ``count`` messages."""
    messages: list[Message] = []

    def has_all() -> bool:
        messages[:] = client.read(queue, since=0, limit=100, merge=True).messages
        return len(messages) >= count

    until(has_all, every=0.1)
    return messages


def test_messages_are_appended_read_by_time_and_purged(client: Client) -> None:
    """Acknowledged messages are read in time order, once, and are gone after a purge."""
    client.create_queue("log")
    sent = [client.send("log", f"line {number}").id for number in range(3)]
    assert [message.id for message in read(client, "log", 3)] == sent
    client.purge_queue("log")
    assert client.read("log", since=0, delay=False).messages == ()
    assert client.info("log").count == 0


def test_a_claimed_message_is_delivered_once(client: Client) -> None:
    """Two claims never get the same message, and an acknowledged one never comes back."""
    client.create_queue("jobs")
    client.send_many("jobs", ["one", "two"])
    jobs = client.job_queue("jobs")
    received: list[Claimed] = []

    def has_both() -> bool:
        received.extend(jobs.receive(1, ttl=60, wait=1))
        return len(received) == 2

    until(has_both)
    assert sorted(str(claimed.message.body) for claimed in received) == ["one", "two"]
    assert jobs.ack(received) == []
    jobs.release_all()
    assert jobs.receive(10) == []


def test_a_group_shares_partitions_and_goes_on_from_commits(
    client: Client, connection: dict[str, Any], zookeeper: ZooKeeper
) -> None:
    """A second member gets half of the partitions; after it leaves, the first has all, and no message comes twice."""
    client.create_queue("events", partitions=PARTITIONS)
    coordination = f"zookeeper://{zookeeper.connect_string}/{unique_name('smoke')}"
    handled: list[str] = []

    def member() -> Consumer:
        coordinator = open_coordinator(coordination, "readers")
        settings = ConsumerSettings(settle=0.1, wait=1.0)
        return Consumer(AsyncClient(**connection), coordinator, queues=["events"], settings=settings)

    def send(count: int) -> int:
        client.send_many("events", [f"event {len(handled) + number}" for number in range(count)])
        return len(handled) + count

    def handle(consumer: Consumer) -> None:
        for batch in consumer.poll(timeout=0.2):
            handled.extend(message.body for message in batch.messages)
        consumer.commit()

    def handled_all(expected: int, *consumers: Consumer) -> bool:
        for consumer in consumers:
            handle(consumer)
        return len(handled) >= expected

    with member() as first:
        until(lambda: len(first.assignment) == PARTITIONS)
        expected = send(SENT)
        until(lambda: handled_all(expected, first))
        with member() as second:
            until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2)
            expected = send(SENT)
            until(lambda: handled_all(expected, first, second))
        until(lambda: len(first.assignment) == PARTITIONS)
        expected = send(SENT)
        until(lambda: handled_all(expected, first))
    assert sorted(handled) == sorted(f"event {number}" for number in range(3 * SENT))
