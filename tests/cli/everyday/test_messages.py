"""``queuey get``, ``delete`` and ``peek``."""

from __future__ import annotations

from queuey.client import Client
from tests.commands import Run

NO_ID = "0123456789ab11e88000000000000001"


def test_get_and_delete_by_id(run: Run, client: Client, queue: str) -> None:
    """An id alone is found in any partition; a partition narrows it. The exit code says what was deleted."""
    kept, deleted = client.send(queue, "kept", partition=3), client.send(queue, "gone", partition=2)
    assert run("get", queue, kept.id, f"2:{deleted.id}", "--raw").text.splitlines() == ["kept", "gone"]
    (shown,) = run("get", queue, kept.id, "--json").json_lines
    assert (shown["message_id"], shown["partition"]) == (kept.id, 3)
    assert run("delete", queue, deleted.id, "--json").json == {"deleted": [f"2:{deleted.id}"]}
    ended = run("get", queue, deleted.id, kept.id, "--raw")
    assert (ended.code, ended.out) == (1, b"kept\n")
    assert f"has no message {deleted.id}: it was deleted, has expired, or never existed" in ended.err
    assert run("delete", queue, NO_ID).code == 1
    dashed = f"3:{kept.id[:8]}-{kept.id[8:].upper()}"
    assert run("delete", queue, f"3:{kept.id}", dashed).text == "1 message deleted.\n"
    assert client.info(queue).count == 0


def test_an_id_of_several_messages(run: Run, client: Client, queue: str) -> None:
    """If several messages have an id none is deleted, and their partitions are named."""
    client.put(queue, [f"1:{NO_ID}", f"2:{NO_ID}"], "twice")
    ended = run("delete", queue, NO_ID)
    assert ended.code == 2
    assert f"1:{NO_ID} 2:{NO_ID}" in " ".join(ended.err.replace("│", " ").split())
    assert client.info(queue).count == 2


def test_get_and_delete_by_name(run: Run, queue: str) -> None:
    """The message of a name is printed and deleted; without one the exit code of ``get`` is 1."""
    run("send", queue, "since Sunday", "--name", "reindex")
    assert run("get", queue, "--name", "reindex", "--raw").out == b"since Sunday\n"
    assert run("delete", queue, "--name", "reindex").code == 0
    ended = run("get", queue, "--name", "reindex")
    assert (ended.code, ended.err) == (1, f"queuey: Queue {queue!r} has no message named 'reindex'.\n")


def test_peek(run: Run, client: Client, queue: str) -> None:
    """It prints messages that are not acknowledged, claimed or not, and claims nothing."""
    client.send_many(queue, ["a", "b"])
    (claimed,) = client.job_queue(queue).receive(1)
    assert len(run("peek", queue, "--json").json_lines) == 2
    assert len(run("peek", queue, "--limit", "1", "--raw").text.splitlines()) == 1
    client.job_queue(queue).ack(claimed)
    assert len(run("peek", queue, "--json").json_lines) == 1
    assert client.job_queue(queue).counts().claimed == 0
