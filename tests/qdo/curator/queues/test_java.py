"""Curator itself and Python on the same queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qdo.curator import SimpleDistributedQueue
from tests.qdo.curator.queues.java_curator import JavaCurator, build
from tests.qdo.curator.queues.queue_nodes import AT_ONCE, PATIENCE, Kazoo, Nodes, RecordedCalls, until
from tests.servers.plugin import ZooKeeper


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the Java program."""
    return build(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def java(command: list[str], zookeeper: ZooKeeper) -> Iterator[JavaCurator]:
    """Curator, for all tests of this module."""
    program = JavaCurator(command, zookeeper.connect_string)
    try:
        yield program
    finally:
        program.close()


Kind = tuple[str, tuple[Any, Any, Any]]
KINDS: list[Kind] = [
    ("queue", ("", "", "")),
    ("priority", (-3, 0, 7)),
    ("delay", (1_000, 2_000, 3_000)),
    ("id", ("a/1", "b", "c")),
]
"""Each queue with the extra fields of its messages, in the order in which they come out."""


def build_queue(nodes: Nodes, client: Kazoo, kind: str, consumer: RecordedCalls | None = None) -> Any:  # noqa: ANN401 - any kind of queue
    builder = nodes.builder(client, consumer, put_in_background=False, retry=AT_ONCE)
    return getattr(builder, "build_queue" if kind == "queue" else f"build_{kind}_queue")()


@pytest.mark.parametrize(("kind", "more"), KINDS, ids=[kind for kind, _ in KINDS])
def test_curator_takes_what_python_puts(
    nodes: Nodes, client: Kazoo, java: JavaCurator, kind: str, more: tuple[Any, ...]
) -> None:
    """Curator's consumers get the messages in the order of its recipe, also those of one node."""
    with nodes.opened(build_queue(nodes, client, kind)) as queue:
        for text, fields in zip(("m0", "ä", ""), more, strict=True):
            queue.put(text, *([fields] if fields != "" else []))
        java.open(kind, nodes.path, nodes.lock_path, consume=True)
        assert [java.next_message() for _ in range(3)] == ["m0", "ä", ""]
        if kind == "queue":
            queue.put_multi(["x", "y"])
            assert [java.next_message(), java.next_message()] == ["x", "y"]
        until(lambda: not queue.message_count())
    java.call("close")


@pytest.mark.parametrize(("kind", "more"), KINDS, ids=[kind for kind, _ in KINDS])
def test_python_takes_what_curator_puts(
    nodes: Nodes, client: Kazoo, java: JavaCurator, heard: RecordedCalls, kind: str, more: tuple[Any, ...]
) -> None:
    """Messages of Curator's producers come in the order of the recipe, also those of one node."""
    java.open(kind, nodes.path, nodes.lock_path)
    for text, fields in zip(("m0", "ä", "last"), more, strict=True):
        java.put(text, more=fields)
    if kind != "id":
        java.put("x", "", "y", more=more[-1])
    with nodes.opened(build_queue(nodes, client, kind, heard)) as queue:
        expected = ["m0", "ä", "last", *(["x", "", "y"] if kind != "id" else [])]
        assert heard.wait(len(expected)) == expected
        until(lambda: not queue.message_count())
    java.call("close")


def test_the_simple_queue(nodes: Nodes, client: Kazoo, java: JavaCurator) -> None:
    """Both sides of the simple queue take the other's messages."""
    queue = SimpleDistributedQueue(client, nodes.path)
    java.open("simple", nodes.path)
    queue.offer(b"from python")
    assert java.call("poll", 60_000) == "from python"
    java.call("offer", "from java")
    assert queue.poll(PATIENCE) == b"from java"
    assert java.call("poll", 0) == ""


def test_locks_hold_across_languages(nodes: Nodes, client: Kazoo, java: JavaCurator, heard: RecordedCalls) -> None:
    """A message in hand on one side is locked for the other, which takes the rest; each is handled once."""
    java.open("queue", nodes.path, nodes.lock_path, consume=True)
    java.put("hold")
    assert java.next_message() == "hold"
    with nodes.opened(build_queue(nodes, client, "queue", heard)) as queue:
        java.put("m1")
        assert heard.wait(1) == ["m1"]
        heard.released.clear()
        queue.put("m2")
        heard.wait(2)
        java.call("go")
        until(lambda: client.get_children(nodes.path) == ["queue-0000000002"])
        java.put("m3")
        assert java.next_message() == "m3"
        assert heard == ["m1", "m2"]
        heard.released.set()
        until(lambda: not queue.message_count())
    java.call("close")
