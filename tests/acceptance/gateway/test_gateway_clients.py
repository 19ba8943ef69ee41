"""Processes of other programs on the same data, many clients at once, and the end of the service under their hands."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from queuey.storage import Store
from queuey.storage.sqlite import check, open_store
from queuey.web.credentials.application_keys import digest_of
from tests.acceptance.wire import Wire, bodies, credential, post
from tests.servers.served import Served
from tests.waiting import until

# Another process on the same data


@pytest.fixture
def elsewhere(served: Served) -> Iterator[Store]:
    """The same data in another process: this one."""
    store = open_store(served.data)
    yield store
    store.close()


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
