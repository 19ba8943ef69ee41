"""``queuey send``, ``read`` and ``tail`` on a real service."""

from __future__ import annotations

import base64
import json
import signal
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from queuey.client import Client
from queuey.model import time_parsing
from tests.commands import Run
from tests.servers.served import Served


def write_feed(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"n": n, "net": f"n{n % 3}"}) + "\n" for n in range(count)))
    return path


def bodies(client: Client, queue: str) -> list[object]:
    return [message.body for message in client.read_all(queue, merge=True)]


def test_arguments_are_messages(run: Run, client: Client, queue: str) -> None:
    """Each argument is stored, with what was said about it, and its place is printed."""
    ended = run("send", queue, "a", "b c", "--partition", "2", "--ttl", "1h", "--header", "x=y", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert [receipt["partition"] for receipt in ended.json_lines] == [2, 2]
    messages = client.get(queue, [f"2:{receipt['key']}" for receipt in ended.json_lines])
    assert [(message.body, message.headers) for message in messages] == [("a", {"x": "y"}), ("b c", {"x": "y"})]


@pytest.mark.parametrize("body", [b"text \xc3\xa4\nand more\n", b"\xff\x00binary"])
def test_standard_input_is_one_message(run: Run, client: Client, queue: str, body: bytes) -> None:
    """What is piped in is stored byte for byte as one message."""
    assert run("send", queue, stdin=body).code == 0
    (message,) = client.read(queue).messages
    assert client.get_raw(queue, message).body == body


def test_feed_from_a_file(run: Run, client: Client, queue: str, tmp_path: Path) -> None:
    """Every line of a file becomes a JSON message, in order."""
    ended = run("send", queue, "--from", str(write_feed(tmp_path / "f", 2500)), "--partition", "1", "--json")
    assert ended.code == 0
    assert (ended.json["sent"], ended.json["queues"]) == (2500, {queue: 2500})
    assert [body["n"] for body in bodies(client, queue)] == list(range(2500))  # type: ignore[index]


def test_receipts_of_what_was_sent(run: Run, client: Client, queue: str, tmp_path: Path) -> None:
    """Every message stored has its line in the file named, from one command after another."""
    receipts = str(tmp_path / "receipts.jsonl")
    assert run("send", queue, "a", "b", "--receipts", receipts).code == 0
    assert run("send", queue, "--from", str(write_feed(tmp_path / "f", 1100)), "--receipts", receipts).code == 0
    lines = [json.loads(line) for line in Path(receipts).read_text().splitlines()]
    stored = {(message.partition, message.id) for message in client.read_all(queue, limit=1000)}
    assert {(line["partition"], line["id"]) for line in lines} == stored
    assert len(lines) == 1102


def test_feed_from_a_pipe_by_field(run: Run, client: Client, queue: str, tmp_path: Path) -> None:
    """Fields pick the queue and the partition; missing queues are made where asked for."""
    lines = write_feed(tmp_path / "f", 90).read_bytes()
    options = ["--from", "-", "--queue-field", "net", "--key-field", "n", "--create", "--partitions", "4"]
    ended = run("send", f"{queue[:20]}-{{}}", *options, stdin=lines)
    assert (ended.code, "90 messages" in ended.text) == (0, True)
    for number in range(3):
        name = f"{queue[:20]}-n{number}"
        assert client.info(name).partitions == 4
        assert sorted(body["n"] for body in bodies(client, name)) == list(range(number, 90, 3))  # type: ignore[index]
        used = {message.partition for message in client.read_all(name)}
        assert len(used) > 1


def test_bad_line_ends_the_feed(run: Run, client: Client, queue: str) -> None:
    """An error names its line, how much was stored before, and how to continue."""
    ended = run("send", queue, "--from", "-", "--partition", "1", "--batch", "2", stdin=b"1\n2\n3\n\n{oops\n6\n")
    assert ended.code == 1
    assert "line 5" in ended.err
    assert "3 messages were stored" in ended.err
    assert "--skip 4" in ended.err
    assert bodies(client, queue) == [1, 2, 3]
    assert (
        run("send", queue, "--from", "-", "--partition", "1", "--skip", "5", stdin=b"1\n2\n3\n\n{oops\n6\n").code == 0
    )
    assert bodies(client, queue) == [1, 2, 3, 6]


def test_read_merges_partitions(run: Run, client: Client, queue: str) -> None:
    """By default all partitions are read, merged by time; backwards with -r."""
    for number in range(6):
        client.send(queue, str(number), partition=number % 3 + 1)
    assert run("read", queue, "--raw").out == b"0\n1\n2\n3\n4\n5\n"
    assert run("read", queue, "--raw", "-r", "-n", "2").out == b"5\n4\n"
    assert run("read", queue, "--raw", "--partitions", "2").out == b"1\n4\n"
    assert [message["body"] for message in run("read", queue, "--json").json_lines] == list("012345")


def test_read_goes_on_where_it_ended(run: Run, client: Client, queue: str) -> None:
    """A limited read says where to go on; following that gives every message once, in both directions."""
    client.send_many(queue, [str(number) for number in range(25)])
    for direction in ([], ["-r"]):
        lines: list[bytes] = []
        more: list[str] = []
        while True:
            ended = run("read", queue, "--raw", "-n", "10", *direction, *more)
            lines += ended.out.splitlines()
            if "--since" not in ended.err:
                break
            more = ["--since", ended.err.split("--since ")[1].strip()]
        assert sorted(map(int, lines)) == list(range(25))


def test_read_by_bounds(run: Run, client: Client, queue: str) -> None:
    """Bounds are ids or instants, inclusive or not as their names say; relative ones count from now."""
    sent = [client.send(queue, str(number), partition=1) for number in range(5)]
    cases = {
        ("--since", sent[2].id): b"2\n3\n4\n",
        ("--after", sent[2].id): b"3\n4\n",
        ("--before", sent[2].id): b"0\n1\n",
        ("--until", sent[2].id): b"0\n1\n2\n",
        ("--since", sent[3].timestamp): b"3\n4\n",
        ("--since", "-1h"): b"0\n1\n2\n3\n4\n",
        ("--before", "-1h"): b"",
        ("--since", "2018-01-31T00:00:00Z"): b"0\n1\n2\n3\n4\n",
    }
    for options, expected in cases.items():
        assert run("read", queue, "--raw", *options).out == expected, options


def test_bodies_of_every_kind(run: Run, client: Client, queue: str) -> None:
    """Text, JSON and bytes are distinct in JSON; on a terminal no body can send escapes."""
    client.send(queue, "\x1b[2Jtext", partition=1)
    client.send(queue, json={"a": [1]}, partition=1)
    client.send(queue, b"\xff\x00", partition=1)
    text, value, data = run("read", queue, "--json").json_lines
    assert (text["body"], value["body"]) == ("\x1b[2Jtext", {"a": [1]})
    assert (base64.b64decode(data["body"]), data["encoding"]) == (b"\xff\x00", "base64")
    assert "encoding" not in text
    assert run("read", queue, "--raw").out == b'\x1b[2Jtext\n{"a":[1]}\n\xff\x00\n'
    plain = run("read", queue).text
    assert "\x1b" not in plain
    assert r"\x1b[2Jtext" in plain


def test_read_says_what_is_not_readable_yet(run: Run, client: Client) -> None:
    """Messages inside the read delay are announced with the time until they can be read; --no-delay shows them."""
    name = client.create_queue(read_delay=60).name
    client.send(name, "young")
    ended = run("read", name)
    assert ended.out == b""
    assert "becomes readable in" in ended.err
    assert "read delay 60 s" in ended.err
    assert run("read", name, "--raw", "--no-delay").out == b"young\n"


def test_a_moment_to_be_due(run: Run, client: Client, queue: str) -> None:
    """``--at`` is local time unless it names a zone; the queue shows how many are delayed, and when the next is due."""
    due_time = (datetime.now() + timedelta(days=2)).replace(microsecond=0)  # noqa: DTZ005 - as people write it
    zoned = (due_time.astimezone(UTC) + timedelta(hours=1)).astimezone(timezone(timedelta(hours=-9)))
    assert run("send", queue, "first", "--at", due_time.isoformat()).code == 0
    assert run("send", queue, "--at", zoned.isoformat(), "--from", "-", "--raw", stdin=b"second\nthird\n").code == 0
    backlog = client.job_queue(queue).backlog()
    assert backlog.delayed == 3
    assert backlog.due == pytest.approx(due_time.timestamp(), abs=5)
    due = time_parsing.format_instant(backlog.due or 0)
    for command in (("jobs", queue), ("queue", "info", queue)):
        assert f"3 delayed (the next is due at {due})" in run(*command).text


def test_tail_begins_with_the_newest(run: Run, client: Client, queue: str) -> None:
    """Tail shows the last messages in order of time and ends at its limit."""
    client.send_many(queue, [str(number) for number in range(5)])
    assert run("tail", queue, "-n", "2", "--limit", "2", "--raw").out == b"3\n4\n"
    assert run("tail", queue, "--since", "-1h", "--limit", "4", "--raw").out == b"0\n1\n2\n3\n"


def test_tail_follows(served: Served, client: Client, queue: str) -> None:
    """Messages of all partitions sent while tail runs are printed as they come, each once."""
    client.send(queue, "before", partition=1)
    with served.command("tail", queue, "--raw", "-n", "1", "--limit", "7") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        for number in range(6):
            client.send(queue, str(number), partition=number % 3 + 1)
            assert process.stdout.readline() == f"{number}\n"
        assert process.wait(100) == 0


def test_ctrl_c_ends_tail_quietly(served: Served, client: Client, queue: str) -> None:
    """Ctrl-C is how tail ends: nothing is printed about it."""
    client.send(queue, "x")
    with served.command("tail", queue, "--raw") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (130, "", "")


def test_broken_pipe_ends_read_quietly(served: Served, client: Client, queue: str) -> None:
    """A reader that closes the pipe is not an error: the command has done its work."""
    client.send_many(queue, ["x" * 1000] * 3000)
    with served.command("read", queue, "--all") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.readline()) > 1000
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(100) == 0


def test_by_name(run: Run, client: Client, queue: str) -> None:
    """A message is stored under a name once, and replaced if that is asked for; a name goes with one message."""
    assert run("send", queue, "a", "--name", "n").code == 0
    again = run("send", queue, "a", "--name", "n", "--json")
    assert (again.code, len(again.json_lines)) == (0, 1)
    taken = run("send", queue, "b", "--name", "n")
    assert (taken.code, "is the name of another message" in taken.err) == (1, True)
    assert run("send", queue, "-", "--name", "n", "--replace", stdin=b"c").code == 0
    assert bodies(client, queue) == ["c"]
