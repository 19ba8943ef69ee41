"""``qdo deadletter``."""

from __future__ import annotations

import time
from collections.abc import Iterable

import anyio
import pytest

from queuey.client import AsyncClient, Client, Message, deadletters
from queuey.client.deadletters import Cause
from tests.commands import Run
from tests.servers.served import Served


def bury(served: Served, queue: str, dead_letters: Iterable[tuple[Message, Cause]]) -> None:
    async def all_of_them() -> None:
        profile = served.profile
        async with AsyncClient(profile.url, key=profile.key, application=profile.application) as client:
            for message, cause in dead_letters:
                await deadletters.bury(client, queue, message, cause)

    anyio.run(all_of_them)


@pytest.fixture
def dead(served: Served, client: Client, queue: str) -> list[Message]:
    """Three dead letters: one of an hour ago, one of now in the second partition, one of another error."""
    for partition, body in ((1, "old"), (2, "new"), (1, "odd\x1b[31m")):
        client.send(queue, body, partition=partition)
    messages = {message.body: message for message in client.read_all(queue, partitions="*")}
    messages_sent = [messages[body] for body in ("old", "new", "odd\x1b[31m")]
    now = time.time()
    causes = [
        Cause(attempts=5, error="ValueError", text="no such\nthing", at=now - 3600),
        Cause(attempts=5, error="ValueError", text="again", at=now),
        Cause(attempts=1, error="shop.OutOfStock", at=now),
    ]
    bury(served, queue, zip(messages_sent, causes, strict=True))
    return messages_sent


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--partition", "2"], [1]),
        (["--since", "-10m"], [1, 2]),
        (["--until", "-10m"], [0]),
        (["--error", "shop.*"], [2]),
        (["--error", "OutOfStock", "--partition", "2"], []),
        (["--limit", "1"], [0]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_filters(run: Run, queue: str, dead: list[Message], options: list[str], expected: list[int]) -> None:
    """A dead letter must match all filters; the list shows what a redrive would send."""
    listed = run("deadletter", "list", "--queue", queue, *options, "--json")
    assert {line["id"] for line in listed.json_lines} == {dead[index].id for index in expected}
    would = run("deadletter", "redrive", "--queue", queue, *options, "--dry-run", "--json").json
    assert (would["sent"], would["dry_run"]) == ({queue: len(expected)} if expected else {}, True)


def test_redrive(run: Run, client: Client, queue: str, dead: list[Message]) -> None:
    """Selected dead letters go back to the end of their partition and are removed; the others stay."""
    ended = run("deadletter", "redrive", "--queue", queue, "--error", "ValueError")
    assert (ended.code, "2 dead letters sent back" in ended.text) == (0, True)
    bodies = {number: [one.body for one in client.read_all(queue, partitions=number)] for number in (1, 2)}
    assert bodies == {1: ["old", "odd\x1b[31m", "old"], 2: ["new", "new"]}
    assert [line["id"] for line in run("deadletter", "list", "--queue", queue, "--json").json_lines] == [dead[2].id]


def test_what_cannot_go_back_is_said(run: Run, client: Client, queue: str, dead: list[Message]) -> None:
    """A dead letter whose queue does not exist stays, with the reason."""
    client.delete_queue(queue)
    ended = run("deadletter", "redrive", "--queue", queue)
    assert ended.code == 1
    assert f"{dead[0].partition}:{dead[0].id} stays" in ended.err
    assert client.info(f"{queue}.dead").count == 3


def test_text_is_printed_harmlessly(run: Run, queue: str, dead: list[Message]) -> None:
    """The text of an error is one line and cannot steer the terminal."""
    shown = run("deadletter", "list", "--queue", queue).text
    assert "no such\\nthing" in shown
    assert len(shown.splitlines()) == 4
    assert "\x1b" not in shown


@pytest.mark.parametrize("option", ["--queue", "--pattern"])
def test_dead_letters_of_claims(run: Run, client: Client, option: str, queue: str) -> None:
    """Dead letters of claims are found in the queue that ``dead_letter`` names, and go back from there."""
    dead_queue = f"{queue}-failed"
    client.create_queue(dead_queue)
    client.update_queue(queue, max_deliveries=1, dead_letter=dead_queue)
    client.send(queue, "x")
    jobs = client.job_queue(queue)
    jobs.release(jobs.receive(ttl=600))
    assert jobs.receive() == []
    (listed,) = run("deadletter", "list", option, queue, "--json").json_lines
    assert (listed["lies_in"], listed["body"]) == (dead_queue, "x")
    ended = run("deadletter", "redrive", option, queue)
    assert (ended.text, ended.err) == (f"{queue}: 1 dead letter sent back\n", "")


@pytest.mark.parametrize("command", ["list", "redrive"])
def test_a_name_that_is_written_wrong(run: Run, client: Client, command: str) -> None:
    """A queue that does not exist and has no dead letters is an error that names similar ones."""
    client.create_queue("bills-2026")
    ended = run("deadletter", command, "--queue", "bills-2062")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == "qdo: Queue 'bills-2062' does not exist; did you mean bills-2026?\n"
    assert run("deadletter", command, "--queue", "bills-2026").code == 0
    ended = run("deadletter", command, "--queue", "bills-2026", "--dead-queue", "bills-2025")
    assert (ended.code, "Queue 'bills-2025' does not exist" in ended.err) == (1, True)


@pytest.mark.parametrize("length", [45, 50])
def test_names_of_any_length(run: Run, served: Served, client: Client, length: int) -> None:
    """Dead letters of a queue with the longest name are listed and sent back as others are."""
    name = "ä b%'" + "x" * (length - 5)
    client.create_queue(name)
    client.send(name, "bad")
    for queue in (name, f"{name}.dead"):
        [message] = client.read_all(queue)
        assert (client.info(queue).dead_letter, client.explain(queue, message).stored) == (f"{queue}.dead", True)
        bury(served, queue, [(message, Cause(attempts=1, error="E", at=time.time()))])
        assert len(run("deadletter", "list", "--queue", queue, "--json").json_lines) == 1
    for queue, count in ((f"{name}.dead", 1), (name, 2)):
        assert run("deadletter", "redrive", "--queue", queue, "--json").json["sent"] == {queue: count}
    assert [message.body for message in client.read_all(name)] == ["bad"] * 3


@pytest.mark.parametrize("options", [[], ["--queue", "q", "--since", "sometime"], ["--queue", "q", "--limit", "0"]])
def test_wrong_usage(run: Run, options: list[str]) -> None:
    """Without a queue, or with impossible filters, no request is sent."""
    assert run("deadletter", "list", *options).code == 2
