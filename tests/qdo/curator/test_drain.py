"""``qdo curator drain`` and ``peek``: items that are moved, their order, and items that stay."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qdo.curator.drain import (
    ID_HEADER,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_BATCH_NODES,
    PRIORITY_HEADER,
    DrainedItem,
    split_into_batches,
)
from qdo.curator.nodes import DELAY, IDS, PRIORITY, SIMPLE, Child, encode
from queuey.client import Client
from tests.commands import Run
from tests.qdo.curator.conftest import CuratorQueue, bodies


@given(
    some.lists(some.tuples(some.integers(1, MAX_BATCH_MESSAGES), some.integers(0, MAX_BATCH_BYTES + 5)), max_size=250)
)
def test_batches_keep_the_order_and_the_limits(sizes: list[tuple[int, int]]) -> None:
    """Batches keep all items in order and within the limit, except an item that is too large for any batch."""
    items = [
        DrainedItem(Child("queue-0000000000", "queue-", at), bytes(weight), 0, many, 0.0)
        for at, (many, weight) in enumerate(sizes)
    ]
    made = list(split_into_batches(items))
    assert [item for batch in made for item in batch] == items
    for batch in made:
        assert 1 <= len(batch) <= MAX_BATCH_NODES
        assert sum(item.messages for item in batch) <= MAX_BATCH_MESSAGES
        assert len(batch) == 1 or sum(len(item.data) for item in batch) <= MAX_BATCH_BYTES


def test_everything_is_moved_in_order(run: Run, curator: CuratorQueue, client: Client, queue: str) -> None:
    """Messages arrive in the queue's order, also several of one node; nothing is left in ZooKeeper."""
    for number in range(120):
        curator.put(f"{number}".encode())
    curator.put(b"a", b"b", b"c")
    ended = run("curator", "drain", curator.path, queue, "--json")
    assert ended.code == 0, ended.err
    assert ended.json == {"items": 121, "messages": 123, "held": 0, "left": 0, "samples": [], "dry_run": False}
    assert bodies(client, queue) == [*map(str, range(120)), "a", "b", "c"]
    assert (curator.names(), curator.state_nodes()) == ([], [])


def test_a_dry_run_moves_nothing(run: Run, curator: CuratorQueue, client: Client, queue: str) -> None:
    """A dry run counts items to be moved and shows items that would stay."""
    names = [curator.put(b"one", b"two"), curator.put_raw(b"?"), curator.put(b"three")]
    ended = run("curator", "drain", curator.path, queue, "--dry-run")
    assert ended.text == f"Would move 2 items with 3 messages from {curator.path} to {queue}.\n"
    assert f"Item {names[1]} stays: it 1 bytes are too few" in ended.err
    assert (ended.code, curator.names(), bodies(client, queue)) == (1, names, [])


def test_a_limit_leaves_the_rest(run: Run, curator: CuratorQueue, client: Client) -> None:
    """With a limit the first items are moved, and the others by the next run, to the chosen partition."""
    queue = client.create_queue(partitions=4).name
    names = [curator.put(body) for body in (b"one", b"two", b"three")]
    drain = ("curator", "drain", curator.path, queue, "--partition", "3", "--ttl", "600")
    assert run(*drain, "--limit", "2").code == 0
    assert (bodies(client, queue), curator.names()) == (["one", "two"], names[2:])
    assert run(*drain).code == 0
    assert [message.body for message in client.read_all(queue, partitions=[3], since=0)] == ["one", "two", "three"]


def test_bad_nodes_are_reported_and_left(run: Run, curator: CuratorQueue, client: Client, queue: str) -> None:
    """One bad node does not keep others from being moved, even if only Queuey refuses it."""
    curator.put(b"one")
    bad = [curator.put_raw(b"\0\1\0\2\2"), curator.put(b"x" * 300_000), curator.put_raw(b"{}", "config-")]
    curator.put(b"two")
    ended = run("curator", "drain", curator.path, queue, "--json")
    assert (ended.code, ended.json["items"], ended.json["left"]) == (1, 2, 3)
    reasons = {left["name"]: left["reason"] for left in ended.json["samples"]}
    assert sorted(reasons) == curator.names() == sorted(bad)
    assert "version" in reasons[bad[0]]
    assert "refused by Queuey" in reasons[bad[1]]
    assert "is not the name of a node of a DistributedQueue" in reasons[bad[2]]
    assert bodies(client, queue) == ["one", "two"]
    assert curator.state_nodes() == []


def make_kinds() -> dict[str, tuple[dict[str, bytes], list[tuple[object, dict[str, str]]]]]:
    """Returns for each recipe the nodes of a queue, and the messages with their headers that readers get."""
    in_an_hour = int(time.time() * 1000) + 3_600_000
    return {
        "priority": (
            {PRIORITY.prefix(5): encode([b"five"]), PRIORITY.prefix(-1): encode([b"urgent"])},
            [("urgent", {PRIORITY_HEADER: "-1"}), ("five", {PRIORITY_HEADER: "5"})],
        ),
        "delay": ({DELAY.prefix(in_an_hour): encode([b"later"]), DELAY.prefix(1): encode([b"now"])}, [("now", {})]),
        "id": ({IDS.prefix("orders/17"): encode([b"pears"])}, [("pears", {ID_HEADER: "orders_17"})]),
        "simple": ({SIMPLE.prefix(): b"\xff\x00"}, [(b"\xff\x00", {})]),
    }


@pytest.mark.parametrize("recipe", ["priority", "delay", "id", "simple"])
def test_each_kind_is_moved(run: Run, curator: CuratorQueue, client: Client, queue: str, recipe: str) -> None:
    """Each kind of queue is moved in its order; priorities and ids become headers, and instants become delays."""
    nodes, expected = make_kinds()[recipe]
    for prefix, data in nodes.items():
        curator.put_raw(data, prefix)
    assert run("curator", "drain", curator.path, queue, "--recipe", recipe).code == 0
    assert [(message.body, message.headers) for message in client.read_all(queue, since=0)] == expected
    assert client.info(queue).count == len(nodes)


def test_items_that_consumers_hold_are_left(run: Run, curator: CuratorQueue, client: Client, queue: str) -> None:
    """With the lock path a drain skips items that consumers hold, and leaves no lock of its own."""
    names = [curator.put(body) for body in (b"one", b"two")]
    lock = f"{curator.root}{curator.lock_path}/{names[0]}"
    curator.kazoo.create(lock, b"", ephemeral=True)
    options = ("curator", "drain", curator.path, queue, "--lock-path", curator.lock_path)
    ended = run(*options, "--dry-run", "--json")
    assert (ended.code, ended.json["items"], ended.json["held"]) == (1, 1, 1)
    shown = run("curator", "peek", curator.path, "--lock-path", curator.lock_path, "--json").json
    assert [item["locked"] for item in shown["first"]] == [True, False]
    assert run(*options, "--limit", "1").code == 0
    assert (bodies(client, queue), curator.names()) == (["two"], names[:1])
    curator.kazoo.delete(lock)
    assert run(*options).code == 0
    assert (bodies(client, queue), curator.names()) == (["two", "one"], [])
    assert curator.kazoo.get_children(curator.root + curator.lock_path) == []


def test_peek_shows_the_first_items(run: Run, curator: CuratorQueue) -> None:
    """Peek prints a table or JSON, and removes nothing."""
    names = [
        curator.put(b"five", prefix=PRIORITY.prefix(5)),
        curator.put(b"one", b"\x1btwo", prefix=PRIORITY.prefix(1)),
        curator.put_raw(b"?", PRIORITY.prefix(7)),
    ]
    curator.kazoo.create(f"{curator.root}{curator.path}/notes", b"")
    ended = run("curator", "peek", curator.path, "--recipe", "priority", "--limit", "2", "--json")
    assert (ended.json["items"], ended.json["others"], ended.json["staged"]) == (3, 1, 0)
    assert [(item["name"], item["priority"], item["messages"]) for item in ended.json["first"]] == [
        (names[1], 1, ["one", "\x1btwo"]),
        (names[0], 5, ["five"]),
    ]
    shown = run("curator", "peek", curator.path, "--recipe", "priority")
    assert f"{curator.path} has 3 items and 1 other nodes." in shown.text
    assert "priority 7" in shown.text
    assert "1 bytes are too few" in shown.text
    assert "\x1b" not in shown.text


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["peek", "/nothing"], 1, "ZooKeeper has no node '/nothing'"),
        (["peek", "orders"], 2, "path is 'orders': give"),
        (["peek", "/queues/orders", "--lock-path", "locks"], 2, "lock_path is 'locks': give"),
        (["drain", "/queues/orders", "nothing"], 1, "nothing"),
        (["drain", "/queues/orders", "q", "--coordination", "local:"], 2, "the coordination is 'local:'"),
    ],
)
@pytest.mark.usefixtures("curator")
def test_what_cannot_be_is_refused(run: Run, arguments: list[str], code: int, error: str) -> None:
    """Each error names the value."""
    ended = run("curator", *arguments)
    assert ended.code == code, ended.err
    assert error in ended.err
