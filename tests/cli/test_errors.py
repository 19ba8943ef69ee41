"""Every error names the thing, its value and the next step, once."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from queuey.client import Client, InvalidRequest
from tests.commands import Run
from tests.servers.served import Served

NOWHERE = "http://127.0.0.1:9"


def test_what_is_not_there(run: Run) -> None:
    """A queue that is not there is named, with the command that makes it."""
    wanted = "queuey: 404 InvalidQueueName: Queue 'no-such' does not exist. Create it: queuey queue create no-such\n"
    for arguments in (["read", "no-such"], ["send", "no-such", "x"], ["queue", "info", "no-such"]):
        assert run(*arguments).err == wanted


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
        "'shop' has no valid key 'abc'. List its keys: queuey app keys shop"
        in run("app", "rotate", "shop", "--key", "abc", *data).err
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "", b'{"body": "x"}', 'It has no "messages"; one message alone goes by another Content-Type.'),
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
