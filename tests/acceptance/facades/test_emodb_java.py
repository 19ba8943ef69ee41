"""EmoDB's own Java client on a real service: every method, and every exception that it makes of answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.facades.calls import find_adjacent_free_ports, write_settings_file
from tests.acceptance.facades.java_client import JavaClient, build
from tests.servers.served import Served

pytestmark = pytest.mark.slow

BACKGROUND_TIMEOUT = 60
"""Timeout in seconds of what happens in the background."""
SERVED = "[facades.emodb]\nbeside = true\n"


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return build(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def emodb(command: list[str], served: Served) -> Iterator[JavaClient]:
    """The client, with a key that may do everything."""
    client = JavaClient(command, served.port, served.profile.key)
    yield client
    client.close()


def test_from_send_to_acknowledge(emodb: JavaClient) -> None:
    """What is sent is counted, polled once, renewed, released and acknowledged."""
    bodies = [{"a": [1, 2.5, "é"], "b": None}, "text", None, True, 7]
    emodb.call("send", "jobs", bodies[0])
    emodb.call("sendAll", "jobs", bodies[1:3])
    emodb.call("sendAllByQueue", {"jobs": bodies[3:], "others": [8]})
    assert emodb.call("size", "jobs") == 5
    assert emodb.call("sizeUpTo", "jobs", 5) == 5
    assert emodb.call("size", "others") == 1
    assert sorted(str(each["payload"]) for each in emodb.call("peek", "jobs", 10)) == sorted(map(str, bodies))
    polled = emodb.call("poll", "jobs", 3600, 10)
    assert sorted(str(each["payload"]) for each in polled) == sorted(map(str, bodies))
    ids = [each["id"] for each in polled]
    assert emodb.call("poll", "jobs", 3600, 10) == []
    assert emodb.call("claimCount", "jobs") == 5
    emodb.call("renew", "jobs", ids[:1], 0)
    assert [each["id"] for each in emodb.call("poll", "jobs", 3600, 10)] == ids[:1]
    emodb.call("renew", "jobs", ids, 3600)
    emodb.call("ack", "jobs", ids[:2])
    emodb.call("unclaimAll", "jobs")
    assert emodb.call("claimCount", "jobs") == 0
    assert {each["id"] for each in emodb.call("poll", "jobs", 3600, 10)} == set(ids[2:])
    emodb.call("purge", "jobs")
    assert emodb.call("size", "jobs") == 0


@pytest.mark.parametrize("kind", ["plain", "dedup"])
def test_a_move(emodb: JavaClient, kind: str) -> None:
    """A move goes on by itself, and its reference says when it is over. Equal messages of a dedup queue stay one."""
    emodb.call("sendAll", "from", [1, 2, 3, 3] if kind == "dedup" else [1, 2, 3], kind=kind)
    emodb.call("send", "to", 0, kind=kind)
    reference = emodb.call("move", "from", "to", kind=kind)
    end = time.monotonic() + BACKGROUND_TIMEOUT
    while (status := emodb.call("moveStatus", reference, kind=kind)) != ["from", "to", "COMPLETE"]:
        assert status == ["from", "to", "IN_PROGRESS"]
        assert time.monotonic() < end
        time.sleep(0.1)
    assert emodb.call("size", "from", kind=kind) == 0
    polled: list[int] = []
    while batch := emodb.call("poll", "to", 3600, 10, kind=kind):
        polled += [each["payload"] for each in batch]
    assert sorted(polled) == [0, 1, 2, 3]


def test_a_server_that_was_away(command: list[str], tmp_path: Path) -> None:
    """The client finds a server again that was killed: it asks for its health until that is good."""
    port, options = find_adjacent_free_ports(), write_settings_file(tmp_path, SERVED)
    with Served(tmp_path, options, port=port) as first:
        client = JavaClient(command, port, first.profile.key)
        try:
            client.call("send", "q", 1)
            first.kill()
            assert client.try_call("size", "q").error
            with Served(tmp_path, options, port=port):
                end = time.monotonic() + BACKGROUND_TIMEOUT
                while (outcome := client.try_call("size", "q")).error:
                    assert time.monotonic() < end, outcome
                    time.sleep(0.2)
                assert outcome.result == 1
        finally:
            client.close()
