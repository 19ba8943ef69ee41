"""The service under its clients' hands: they leave, they are many, they work through several processes, it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from queuey.messages import QueueSpec
from queuey.storage import Store
from queuey.storage.sqlite import check, open_store
from queuey.web.credentials.application_keys import digest_of
from tests.acceptance.conftest import SLOTS
from tests.acceptance.test_serve_stop import until
from tests.acceptance.wire import JSON, Reply, Wire, bodies, credential, post
from tests.servers.served import Served
from tests.waiting import PATIENCE_SECONDS

# Clients that leave while something is under way


def test_clients_that_leave_during_the_write(served: Served, queue: str) -> None:
    """Whole requests whose senders do not wait for the answer do no harm: each is stored at most once."""
    for number in range(50):
        with Wire(served) as wire:
            wire.send(post(queue), b"%05d" % number, "Content-Length: 5")
            if number % 2:
                wire.socket.shutdown(socket.SHUT_WR)
    with Wire(served) as wire:
        assert wire.ask(post(queue), b"after", "Content-Length: 5").status == 201
    stored = bodies(served, queue)
    assert len(set(stored)) == len(stored)
    assert set(stored) <= {f"{number:05d}" for number in range(50)} | {"after"}


def test_long_polls_beyond_the_slots(served: Served, queue: str) -> None:
    """One reader more than may wait gets 503 at once; posts, reads and other methods go on; the waiting are woken."""
    newest = httpx2.get(f"{served.profile.url}/v1/queuey/{queue}", headers=credential(served)).json()["cursor"]
    waiting = [Wire(served) for _ in range(SLOTS + 5)]
    for wire in waiting:
        wire.send(f"GET /v1/queuey/{queue}?since={newest}&w%61it=20")
    # Which of them may wait is a matter of chance; the others are answered.
    with ThreadPoolExecutor(len(waiting)) as pool:
        answers: list[Future[Reply]] = [pool.submit(wire.answer, "GET") for wire in waiting]
        until(lambda: sum(answer.done() for answer in answers) == 5)
        refused = [answer.result(PATIENCE_SECONDS) for answer in answers if answer.done()]
        assert {(reply.status, reply.headers["retry-after"]) for reply in refused} == {(503, "1")}
        with Wire(served) as other:
            for _ in range(20):
                assert other.ask(f"GET /v1/queuey/{queue}").status == 200
                assert other.ask("GET /__heartbeat__").status == 200
            more = b'{"queues":[{"queue_name":"%b","since":"%b"}],"wait":20}' % (queue.encode(), newest.encode())
            full = other.ask("POST /v1/queuey/_read", more, f"Content-Length: {len(more)}", JSON)
            assert full.status == 503
            assert sum(answer.done() for answer in answers) == 5
            assert other.ask(post(queue), b"news", "Content-Length: 4").status == 201
        woken = [
            answer.result(PATIENCE_SECONDS) for answer in answers if answer.result(PATIENCE_SECONDS) not in refused
        ]
    assert [[message["body"] for message in json.loads(reply.body)["messages"]] for reply in woken] == [
        ["news"]
    ] * SLOTS
    for wire in waiting:
        wire.close()


def test_long_polls_whose_clients_leave(served: Served, queue: str) -> None:
    """Readers who go away while they wait give their places back, although nothing comes."""
    newest = httpx2.get(f"{served.profile.url}/v1/queuey/{queue}", headers=credential(served)).json()["cursor"]
    poll = f"GET /v1/queuey/{queue}?since={newest}&wait=20"
    for _ in range(SLOTS):
        with Wire(served) as wire:
            wire.send(poll)
    began = time.monotonic()
    with Wire(served) as wire:
        until(lambda: wire.ask(f"GET /v1/queuey/{queue}?since={newest}&wait=0.01").status == 200)
        assert time.monotonic() - began < 18


# Another process on the same data


@pytest.fixture
def elsewhere(served: Served) -> Iterator[Store]:
    """The same data in another process: this one."""
    store = open_store(served.data)
    yield store
    store.close()


def test_queue_purged_while_posting(served: Served, elsewhere: Store, queue: str) -> None:
    """Posts around a purge in another process are either gone with it or stored after it; none fails."""
    acknowledged: list[str] = []
    with Wire(served) as wire:
        for number in range(60):
            if number % 10 == 5:
                elsewhere.purge_queue(elsewhere.queue("queuey", queue, fresh=True))
                acknowledged.clear()
            assert wire.ask(post(queue), b"%05d" % number, "Content-Length: 5").status == 201
            acknowledged.append(f"{number:05d}")
    with served.client() as client:
        assert [message.body for message in client.read(queue).messages] == acknowledged


def test_queue_changed_and_deleted_while_posting(served: Served, elsewhere: Store, queue: str) -> None:
    """What another process does to a queue counts for the very next post."""
    with Wire(served) as wire:
        ask = (post(queue), b"x", "Content-Length: 1", "X-Partition: 3")
        assert wire.ask(*ask).errors.keys() == {"partition"}
        elsewhere.update_queue(elsewhere.queue("queuey", queue, fresh=True), QueueSpec(partitions=3))
        assert wire.ask(*ask).status == 201
        elsewhere.delete_queue(elsewhere.queue("queuey", queue, fresh=True))
        assert list(wire.ask(*ask).errors) == ["InvalidQueueName"]
        elsewhere.create_queue("queuey", queue, QueueSpec(partitions=2))
        assert wire.ask(*ask).errors.keys() == {"partition"}
        assert wire.ask(*ask[:3], "X-Partition: 2").status == 201


def test_key_revoked_while_posting(served: Served, elsewhere: Store, queue: str) -> None:
    """A key revoked by another process ends, although it is used all the time."""
    secret = "b" * 64
    key = elsewhere.add_key("queuey", digest_of(secret))
    with Wire(served) as wire:
        wire.key = secret
        ask = (post(queue), b"x", "Content-Length: 1")
        assert wire.ask(*ask).status == 201
        elsewhere.revoke_key("queuey", key.id)
        until(lambda: wire.ask(*ask).status == 401)
        assert wire.is_usable()


# Many, and the end


async def post_once(port: int, request: bytes, gate: asyncio.Event) -> bytes:
    """Connects, waits for all others, posts, and returns the first line of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await gate.wait()
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line


def test_five_hundred_connections(served: Served, queue: str) -> None:
    """As many connections as that post at the same moment; each message is acknowledged and there, once."""

    async def work() -> list[bytes]:
        gate = asyncio.Event()
        head = f"{post(queue)} HTTP/1.1\r\nHost: x\r\nAuthorization: Application {served.profile.key}\r\n"
        requests = [f"{head}Content-Length: 3\r\n\r\n{number:03d}".encode() for number in range(500)]
        posts = [asyncio.create_task(post_once(served.port, request, gate)) for request in requests]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*posts)

    assert {line.split()[1] for line in asyncio.run(work())} == {b"201"}
    assert sorted(bodies(served, queue)) == [f"{number:03d}" for number in range(500)]


def test_sigterm_with_posts_and_polls_under_way(tmp_path: Path) -> None:
    """Whatever was acknowledged before the end is there after it, no poll is left without an answer, and it is 0."""
    acknowledged: list[str] = []
    many = threading.Event()

    def keep_posting(served: Served, worker: int) -> None:
        with httpx2.Client(headers=credential(served), timeout=30) as client:
            for number in range(100_000):
                body = f"{worker}-{number}"
                try:
                    reply = client.post(f"{served.profile.url}/v1/queuey/q", content=body)
                except httpx2.TransportError:
                    return
                if reply.status_code != 201:
                    assert reply.status_code == 503
                    return
                acknowledged.append(body)
                if len(acknowledged) > 200:
                    many.set()

    with Served(tmp_path) as served:
        with served.client() as client:
            client.create_queue("q")
            client.create_queue("empty")
        polls = [Wire(served) for _ in range(5)]
        for wire in polls:
            wire.send("GET /v1/queuey/empty?wait=20")
        threads = [threading.Thread(target=keep_posting, args=(served, worker)) for worker in range(8)]
        for thread in threads:
            thread.start()
        assert many.wait(60)
        assert served.end(signal.SIGTERM) == 0
        for thread in threads:
            thread.join(60)
        assert [wire.answer("GET").status for wire in polls] == [200] * 5
        for wire in polls:
            wire.close()
        assert "Traceback" not in served.output
    assert check(served.data) == []
    with Served(tmp_path) as again, again.client() as client:
        stored = [message.body for message in client.read_all("q")]
    assert len(set(stored)) == len(stored)
    assert set(acknowledged) <= set(stored)
