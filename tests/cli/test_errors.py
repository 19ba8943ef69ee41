"""Every error names the object, its value and the next step, once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from queuey.cli import main
from queuey.client import Client
from queuey.client._sync.sender import Sender
from tests.client.scripted import Script, claims, refuse_connection
from tests.commands import Run, make_runner, simulated_pauses
from tests.replacing import replace

RECEIPT = "1-0123456789ab11e88000000000000001-1-9c08f02cb6dbcc-d5be0d"
MISSING = "Queue 'no-such' does not exist. List those that do: queuey queue list"
UNKNOWN = "404 InvalidQueueName: Queue 'no-such' does not exist. Create it: queuey queue create no-such"
ERRORS = f"""
read no-such | {UNKNOWN}
send no-such x | {UNKNOWN}
queue info no-such | {UNKNOWN}
queue delete no-such --yes | {MISSING}
queue purge no-such --yes | {MISSING}
ack no-such {RECEIPT} | {MISSING}
release no-such {RECEIPT} | {MISSING}
serve --port 99999 | Setting port (from --port) is '99999'. Expected: whole number, 0 to 65535.
send QUEUE '' | 400 InvalidParameter: body: Required
send QUEUE x --partition 9 | 400 InvalidParameter: partition: 9 is greater than maximum value 3
claim QUEUE --ttl 99999999 | 400 InvalidParameter: ttl: 99999999 is greater than maximum value 43200
send QUEUE b --name taken | 'taken' is the name of another message. Wait until that one is done, or replace it: \
--replace
queue create QUEUE --partitions 7 | 409 QueueExists: Queue 'QUEUE' exists and has partitions 3. \
Ask for that, or change it: queuey queue update QUEUE
queue update QUEUE --partitions 2 | 400 InvalidUpdate: Partitions can only be increased. \
Queue 'QUEUE' has 3 partitions, more than 2.
"""
"""A command line, and its whole error."""


@pytest.mark.parametrize(("line", "said"), [case.split(" | ") for case in ERRORS.strip().splitlines()])
def test_errors_say_what_to_do(run: Run, client: Client, queue: str, line: str, said: str) -> None:
    """The error names what is wrong, and the next step if there is one."""
    client.named(queue).create("taken", "a")
    ended = run(*(word.replace("QUEUE", queue) for word in shlex.split(line)))
    assert ended.code in {1, 2}
    assert ended.err == f"queuey: {said.replace('QUEUE', queue)}\n"


def test_no_service(run: Run) -> None:
    """If no service answers for half a minute, the notes and the error name the command that starts one here."""
    with simulated_pauses() as slept:
        ended = run("read", "q", "--url", "http://127.0.0.1:9", "--key", "k")
    assert 28 <= sum(slept) <= 30
    *notes, error = ended.err.splitlines()
    assert len(notes) >= sum(pause >= 1 for pause in slept) >= 5
    assert all(note.startswith("The request failed. Retrying in ") for note in notes)
    assert error.startswith("queuey: http://127.0.0.1:9: no connection (")
    assert all(line.endswith(". Start the service: queuey serve") for line in [*notes, error])


def test_a_name_that_is_written_wrong(run: Run, client: Client) -> None:
    """Similar names of queues that the key may list are named, and nothing is said about others."""
    client.create_queue("invoices-2026")
    hint = "did you mean invoices-2026?"
    assert run("read", "invoices-2062").err.endswith(f"queuey queue create invoices-2062; {hint}\n")
    expected = f"queuey: Queue 'invoices-2062' does not exist; {hint} List those that do: queuey queue list\n"
    assert run("queue", "delete", "invoices-2062", "--yes").err == expected
    assert "did you mean" not in run("read", "something else").err


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["read", "no-such"], 1, {"type": "InvalidQueueName", "title": "404 InvalidQueueName: Queue 'no-such' does"}),
        (
            ["queue", "delete", "no-such", "--yes"],
            1,
            {"type": "InvalidQueueName", "title": "Queue 'no-such' does not exist. List"},
        ),
        (["queue", "delete", "no-such"], 2, {"type": "Failed", "title": "Delete "}),
        (["read", "x", "--limit", "0"], 2, {"type": "InvalidArgument", "title": "Invalid value for '--limit'"}),
        (["read"], 2, {"type": "InvalidArgument", "title": "Missing argument"}),
        (["read", "_x"], 2, {"type": "InvalidArgument", "title": "'_x' is not a valid queue name"}),
        (
            ["read", "x", "--profile", "/no-such"],
            1,
            {"type": "ProfileNotFound", "title": "no server address: give a URL"},
        ),
    ],
)
def test_errors_as_json(run: Run, words: list[str], code: int, error: dict[str, str]) -> None:
    """With --json the error that ends a command is a line of JSON, whatever its cause."""
    ended = run(*words, "--json")
    report = json.loads(ended.err)
    assert (ended.code, ended.out, report["type"], report["exit_code"]) == (code, b"", error["type"], code)
    assert report["title"].startswith(error["title"]), report


def test_options_of_a_program_are_its_own(run: Run, queue: str, client: Client) -> None:
    """What stands behind -- makes no error JSON."""
    client.send(queue, "a")
    assert run("claim", queue, "--", "/no-such", "--json").err.startswith("Usage:")


def test_a_key_of_a_message(run: Run, queue: str) -> None:
    """Where --key is not accepted by send, the option for the key of a message is named."""
    ended = run("send", queue, "a", "--key", "k")
    assert ended.code == 1
    assert ended.err.endswith("; --key is the key of the application; for the key of a message use --message-key\n")
    assert "--message-key" not in run("read", queue, "--key", "k").err


def test_applications(run: Run, tmp_path: Path) -> None:
    """Applications and keys are named, with what to do instead."""
    data = ["--data", str(tmp_path / "data")]
    (tmp_path / "data").mkdir()
    assert run("app", "create", "shop", *data).code == 0
    again = "queuey: Application 'shop' exists already. Give it a further key: queuey app key-add shop\n"
    missing = "queuey: Application 'shep' does not exist. Create it: queuey app create shep\n"
    no_key = "queuey: Key 'abc' does not exist. List those that do: queuey app keys APPLICATION\n"
    assert run("app", "create", "shop", *data).err == again
    assert run("app", "keys", "shep", *data).err == missing
    assert run("app", "revoke", "shop", "abc", "--yes", *data).err == no_key
    assert (
        "'shop' has no valid key 'abc' to rotate. List its keys: queuey app keys shop"
        in run("app", "rotate", "shop", "--key", "abc", *data).err
    )


@contextmanager
def scripted(script: Script) -> Iterator[None]:
    """Lets the script answer each client of the block."""
    begin = Sender.__init__

    def scripted_init(sender: Sender, *given: Any, transport: Any = None, **options: Any) -> None:  # noqa: ANN401
        begin(sender, *given, transport=httpx2.MockTransport(script), **options)

    with replace(Sender.__init__, scripted_init):
        yield


@pytest.mark.needs_programs
def test_a_release_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the service is away for half a minute when a program has failed, the command says when its job comes again."""
    script = Script(claims(1), refuse_connection)
    words = ("claim", "q", "--limit", "1", "--url", "http://127.0.0.1:9", "--key", "key", "--", "false")
    with scripted(script), simulated_pauses() as slept:
        ended = make_runner("queuey", main, monkeypatch)(*words)
    assert (ended.code, sum(slept) >= 28) == (1, True)
    assert "The release failed, so its claim has to expire first" in ended.err


def test_a_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that waits because the service cannot store says why and for how long, and then goes on or fails."""
    errors = {"StoreFull": "The disk is full."}
    full = httpx2.Response(503, json={"status": "error", "error_msg": errors}, headers={"Retry-After": "10"})
    with scripted(Script(full)), simulated_pauses() as slept:
        ended = make_runner("queuey", main, monkeypatch)(
            "send", "--url", "http://127.0.0.1:9", "--key", "key", "q", "x"
        )
    waits = ended.err.splitlines()[:-1]
    assert (ended.code, len(slept), len(waits)) == (1, 2, 2)
    assert all(line.startswith("The request failed. Retrying in 1") for line in waits)
    assert all(line.endswith("The disk is full.") for line in ended.err.splitlines())
