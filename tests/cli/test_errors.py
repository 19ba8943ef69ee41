"""Every error names the thing, its value and the next step, once."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from queuey.client import Client, InvalidRequest
from tests.commands import Run
from tests.servers.served import Served

NOWHERE = "http://127.0.0.1:9"
MISSING = "queuey: Queue 'no-such' does not exist. List those that do: queuey queue list\n"


def test_what_is_not_there(run: Run) -> None:
    """A queue that is not there is named, with the command that makes it."""
    wanted = "queuey: 404 InvalidQueueName: Queue 'no-such' does not exist. Create it: queuey queue create no-such\n"
    for arguments in (["read", "no-such"], ["send", "no-such", "x"], ["queue", "info", "no-such"]):
        assert run(*arguments).err == wanted


def test_a_name_that_is_written_wrong(run: Run, client: Client) -> None:
    """Similar names of queues that the key may list are named, and nothing is said about others."""
    client.create_queue("invoices-2026")
    hint = "did you mean invoices-2026?"
    assert run("read", "invoices-2062").err.endswith(f"queuey queue create invoices-2062; {hint}\n")
    wanted = f"queuey: Queue 'invoices-2062' does not exist; {hint} List those that do: queuey queue list\n"
    assert run("queue", "delete", "invoices-2062", "--yes").err == wanted
    assert "did you mean" not in run("read", "something else").err


def test_what_has_to_be_there(run: Run) -> None:
    """Where a queue that is made now would be of no use, the command that lists queues is named."""
    for words in (["queue", "delete", "no-such", "--yes"], ["queue", "purge", "no-such", "--yes"]):
        assert run(*words).err == MISSING
    for command in ("ack", "release"):
        assert run(command, "no-such", "1-0123456789ab11e88000000000000001-1-9c08f02cb6dbcc-d5be0d").err == MISSING


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["read", "no-such"], 1, {"type": "InvalidQueueName", "title": "404 InvalidQueueName: Queue 'no-such' does"}),
        (
            ["queue", "delete", "no-such", "--yes"],
            1,
            {"type": "Failed", "title": "Queue 'no-such' does not exist. List"},
        ),
        (["queue", "delete", "no-such"], 2, {"type": "Failed", "title": "Delete "}),
        (["read", "x", "--limit", "0"], 2, {"type": "InvalidArgument", "title": "Invalid value for '--limit'"}),
        (["read"], 2, {"type": "InvalidArgument", "title": "Missing argument"}),
        (["read", "_x"], 2, {"type": "InvalidArgument", "title": "no queue can be named '_x'"}),
        (
            ["read", "x", "--profile", "/no-such"],
            1,
            {"type": "ProfileNotFound", "title": "no server is named: give its url"},
        ),
    ],
)
def test_errors_as_json(run: Run, words: list[str], code: int, error: dict[str, str]) -> None:
    """With --json the error that ends a command is a line of JSON, whatever its cause."""
    ended = run(*words, "--json")
    found = json.loads(ended.err)
    assert (ended.code, ended.out, found["type"], found["exit_code"]) == (code, b"", error["type"], code)
    assert found["title"].startswith(error["title"]), found


def test_options_of_a_program_are_its_own(run: Run, queue: str, client: Client) -> None:
    """What stands behind -- makes no error JSON."""
    client.send(queue, "a")
    assert run("claim", queue, "--", "/no-such", "--json").err.startswith("Usage:")


def test_two_sentences_have_one_stop(run: Run, queue: str) -> None:
    """What is added to an error begins after a semicolon, and not after a stop and a semicolon."""
    assert ".;" not in run("send", queue, "a", "--key", "k").err


def test_wrong_settings(run: Run) -> None:
    """A setting that cannot be is answered in the words of the table of settings."""
    said = "queuey: Setting port (from --port) is '99999'. Expected: whole number, 0 to 65535.\n"
    assert run("serve", "--port", "99999") == (2, b"", said)


def test_one_message_of_a_command(run: Run, queue: str) -> None:
    """An error about a single message does not speak of the first of several."""
    assert run("send", queue, "").err == "queuey: 400 InvalidParameter: body: Required\n"
    said = "queuey: 400 InvalidParameter: partition: 9 is greater than maximum value 3\n"
    assert run("send", queue, "x", "--partition", "9").err == said


def test_a_name_that_is_taken(run: Run, queue: str) -> None:
    """The option that replaces the message is named."""
    assert run("send", queue, "a", "--name", "n").code == 0
    said = "queuey: 'n' names another message. Wait until that is done, or replace it: --replace\n"
    assert run("send", queue, "b", "--name", "n") == (1, b"", said)


def test_a_key_of_a_message(run: Run, queue: str) -> None:
    """Where --key is not accepted by send, the option for the key of a message is named."""
    ended = run("send", queue, "a", "--key", "k")
    assert ended.code == 1
    assert ended.err.endswith("; --key is the key of the application; that of a message is --message-key\n")
    assert "--message-key" not in run("read", queue, "--key", "k").err


def test_a_new_queue_has_no_empty_row(run: Run) -> None:
    """When a queue was created is not shown where the answer does not say it."""
    assert "created" not in run("queue", "create").text


def test_long_numbers_are_shown_in_digits(run: Run, queue: str) -> None:
    """A number out of its range is shown as it was given."""
    assert ": 99999999 is greater than maximum value" in run("claim", queue, "--ttl", "99999999").err


def test_queue_that_is_there(run: Run, queue: str) -> None:
    """A queue that is there with other fields says what it has."""
    assert run("queue", "create", queue, "--partitions", "7").err == (
        f"queuey: 409 QueueExists: Queue {queue!r} exists and has partitions 3."
        f" Ask for that, or change it: queuey queue update {queue}\n"
    )
    assert run("queue", "update", queue, "--partitions", "2").err == (
        f"queuey: 400 InvalidUpdate: Partitions can only be increased. Queue {queue!r} has 3 partitions, more than 2.\n"
    )


def test_one_message_has_no_number(client: Client, queue: str) -> None:
    """A refusal of one message alone speaks of its fields, not of the first of a batch."""
    with pytest.raises(InvalidRequest) as caught:
        client.send(queue, json={"a": 1}, partition=9)
    assert list(caught.value.fields) == ["partition"]
    with pytest.raises(InvalidRequest) as caught:
        client.send_many(queue, ["a", "b", ""])
    assert list(caught.value.fields) == ["2.body"]


def test_no_service(run: Run) -> None:
    """Where nobody answers on this machine, the command that starts a service is named."""
    ended = run("read", "q", "--url", NOWHERE, "--key", "k")
    assert ended.err.startswith(f"queuey: {NOWHERE}: no connection (")
    assert ended.err.endswith(". Start the service: queuey serve\n")


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


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "", b'{"body": "x"}', 'It has no "messages". A batch is {"messages": [{"body": ...}]}; send one'),
        ("POST", "", b"{oops", "JSON is malformed: "),
        ("GET", "/xyz", b"", '"xyz" is not a message id: [<partition>:]<32 hex digits of a version 1 UUID>.'),
        (
            "GET",
            f"/{'f' * 12}1{'f' * 3}{'a' * 16}?raw=true",
            b"",
            "is not there: it was deleted, has expired, or lies in",
        ),
        ("GET", "/offsets/billing", b"", "Group 'billing' has no offsets of this queue."),
    ],
    ids=["no messages", "no JSON", "no id", "no message", "no group"],
)
def test_what_a_program_is_told(served: Served, queue: str, method: str, path: str, body: bytes, said: str) -> None:
    """Programs without our client get the same texts."""
    profile = served.profile
    connection = HTTPConnection(urlsplit(profile.url).netloc)
    headers = {"Authorization": f"Application {profile.key}", "Content-Type": "application/json"}
    connection.request(method, f"/v1/queuey/{queue}{path}", body, headers)
    answer = connection.getresponse()
    text = answer.read().decode().replace('\\"', '"')
    connection.close()
    assert answer.status in {400, 404}
    assert said in text
