"""The facade of SoftLayer MQ on a real service: every call, every error, and what the original lost."""

from __future__ import annotations

import gzip
import re
import time
import uuid
from pathlib import Path

import pytest

from queuey.client import Client
from queuey.model.messages import MAX_TTL
from tests.acceptance.facades.calls import WAIT, Facade, Reply, write_settings_file
from tests.servers.served import Served, run_queuey

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
SHORT_REDELIVERY_SETTINGS = "[facades.mq]\nredelivery = 1\nunsynced = true\n"


@pytest.fixture
def mq(served: Served) -> Facade:
    return Facade(served.port, "/mq")


def id_of(reply: Reply) -> str:
    return reply.headers["X-Message-Id"]


def post(mq: Facade, queue: str, body: bytes = b"job") -> str:
    reply = mq.call("POST", f"/{queue}/messages", body)
    assert (reply.status, reply.body) == (201, b"")
    return id_of(reply)


def fetch_until(mq: Facade, queue: str, status: int) -> Reply:
    end = time.monotonic() + WAIT
    while (reply := mq.call("GET", f"/{queue}/messages")).status != status:
        assert time.monotonic() < end, f"still {reply}"
    return reply


def test_queue_calls(mq: Facade, native: Client, queue: str) -> None:
    """A queue can be created, created again, read and deleted, also twice; its options are those of MQ."""
    assert mq.call("GET", f"/{queue}").status == 404
    assert mq.call("DELETE", f"/{queue}").status == 200
    for _ in range(2):
        assert mq.call("PUT", f"/{queue}", b"ignored")[:2] == (201, b"")
    assert mq.call("GET", f"/{queue}")[:2] == (200, b"")
    info = native.info(queue)
    assert (info.partitions, info.ttl, info.on_ack) == (1, MAX_TTL, "delete")
    post(mq, queue)
    for _ in range(2):
        assert mq.call("DELETE", f"/{queue}")[:2] == (200, b"")
    assert mq.call("GET", f"/{queue}").status == 404
    assert mq.call("GET", f"/{queue}/messages").status == 204


def test_message_calls(mq: Facade, queue: str) -> None:
    """One reader gets messages in order, each once until it is deleted; ids are the same at posting and fetching."""
    mq.call("PUT", f"/{queue}")
    posted = [(b"%d" % number, post(mq, queue, b"%d" % number)) for number in range(20)]
    assert all(uuid.UUID(name).version == 1 and name == str(uuid.UUID(name)) for _, name in posted)
    fetched = [mq.call("GET", f"/{queue}/messages") for _ in posted]
    assert [(reply.status, reply.body, id_of(reply)) for reply in fetched] == [(200, *each) for each in posted]
    nothing = mq.call("GET", f"/{queue}/messages")
    assert (nothing.status, nothing.body, nothing.headers["X-Message-Id"]) == (204, b"", None)
    for _, name in posted * 2:
        assert mq.call("DELETE", f"/{queue}/messages/{name}")[:2] == (202, b"")


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"text \xc3\xa9", bytes(range(256)), b"<html>", gzip.compress(b"x", mtime=0)], ids=repr
)
def test_any_bytes(mq: Facade, queue: str, body: bytes) -> None:
    """A body comes back byte for byte, whatever its headers say, and browsers do not interpret it."""
    sent = mq.call("POST", f"/{queue}/messages", body, Content_Encoding="gzip", Content_Type="application/json")
    fetched = mq.call("GET", f"/{queue}/messages?ignored=1")
    assert (sent.status, fetched.status, fetched.body, id_of(fetched)) == (201, 200, body, id_of(sent))
    assert fetched.headers["X-Content-Type-Options"] == "nosniff"
    assert fetched.headers["Content-Type"] in {"text/plain; charset=utf-8", "application/octet-stream"}


def test_longest(mq: Facade, queue: str) -> None:
    """A message has 4 MiB at most; one byte more is 400 and stores nothing, not even the queue."""
    assert mq.call("POST", f"/{queue}/messages", b"x" * (MAX_MESSAGE_BYTES + 1)).status == 400
    assert mq.call("GET", f"/{queue}").status == 404
    body = b"\xff" * MAX_MESSAGE_BYTES
    post(mq, queue, body)
    assert mq.call("GET", f"/{queue}/messages").body == body


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/{queue}/"),
        ("GET", "/{queue}/messages/4ad814ab-213e-11e3-a9a3-0025904f6e08"),
        ("DELETE", "/{queue}/messages"),
        ("DELETE", "/{queue}/messages/4AD814AB"),
        ("POST", "/{queue}"),
        ("HEAD", "/{queue}"),
        ("PUT", "/_private"),
        ("PUT", "/" + 51 * "a"),
        ("POST", "/%01/messages"),
        ("POST", "/a%2Fb/messages"),
        ("DELETE", "/_private"),
        ("GET", "/_private/messages"),
    ],
)
def test_unknown_requests_are_404(mq: Facade, native: Client, queue: str, method: str, path: str) -> None:
    """Every request but the six calls is 404 and changes nothing."""
    before = list(native.queue_names())
    assert mq.call(method, path.format(queue=queue), b"body" if method in {"POST", "PUT"} else None).status == 404
    assert list(native.queue_names()) == before


@pytest.mark.parametrize(
    "name", ["4ad814ab-213e-11e3-a9a3-0025904f6e08", "4ad814ab-213e-11e3-a9a3-0025904f6e08-7", "x"]
)
@pytest.mark.parametrize("there", ["there", ""])
def test_unknown_ids(mq: Facade, queue: str, name: str, there: str) -> None:
    """Deleting a message that does not exist is 202, and affects no other."""
    if there:
        post(mq, queue)
    assert mq.call("DELETE", f"/{queue}/messages/{name}").status == 202
    assert mq.call("GET", f"/{queue}/messages").status == (200 if there else 204)


def test_id_of_another_queue(mq: Facade, queue: str) -> None:
    """An id deletes nothing from a queue that has no such message."""
    first, second = post(mq, queue), post(mq, f"{queue}b")
    assert mq.call("DELETE", f"/{queue}/messages/{second}").status == 202
    assert (id_of(mq.call("GET", f"/{queue}/messages")), id_of(mq.call("GET", f"/{queue}b/messages"))) == (
        first,
        second,
    )


def test_ordinary_queues(mq: Facade, native: Client, queue: str) -> None:
    """Messages can be read by time and claimed natively, and those sent natively are fetched."""
    first = post(mq, queue, b"\xff")
    native.send(queue, "second")
    shown = list(native.read_all(queue, since=0))
    assert [message.body for message in shown] == [b"\xff", "second"]
    assert shown[0].id == first.replace("-", "")
    [job] = native.job_queue(queue).receive(limit=1, ttl=600)
    assert job.message.id == shown[0].id
    fetched = mq.call("GET", f"/{queue}/messages")
    assert (fetched.body, uuid.UUID(id_of(fetched)).hex) == (b"second", shown[1].id)
    assert mq.call("DELETE", f"/{queue}/messages/{first}").status == 202
    assert [message.body for message in native.read_all(queue, since=0)] == ["second"]
    assert native.job_queue(queue).counts().claimed == 1


def test_queues_with_more_partitions(mq: Facade, native: Client, queue: str) -> None:
    """A queue that was made natively is used as it is; its ids name the partition, and are short enough for a path."""
    native.create_queue(queue, partitions=3)
    native.send(queue, "there", partition=3)
    name = id_of(mq.call("GET", f"/{queue}/messages"))
    assert re.fullmatch(r"[a-z0-9-]+-3", name)
    assert mq.call("DELETE", f"/{queue}/messages/{name}").status == 202
    assert native.job_queue(queue).counts().claimed == 0


def test_repeated_post(mq: Facade, queue: str) -> None:
    """A client that gives its posts a key may repeat one whose answer was lost: it is stored once."""
    names = {id_of(mq.call("POST", f"/{queue}/messages", b"x", Idempotency_Key="k1")) for _ in range(3)}
    assert len(names) == 1
    fetch_until(mq, queue, 204)


def test_not_through_other_schemes(served: Served, mq: Facade, queue: str) -> None:
    """The right that the facade lends its callers cannot be had by asking the service's own API for it."""
    mq.call("PUT", f"/{queue}")
    for header in ("Facade x", "Facade", "facade mq"):
        assert Facade(served.port).call("POST", f"/v1/queuey/{queue}", b"x", Authorization=header).status in {401, 403}
    assert mq.call("GET", f"/{queue}/messages").status == 204


def test_no_application(tmp_path: Path) -> None:
    """Beside the service's own API it serves an existing application; otherwise the start says how to create it."""
    options = write_settings_file(tmp_path, '[facades]\napp = "shop"\n[facades.mq]\nprefix = "/mq"\n')
    places = ("--data", str(tmp_path / "data"), "--profile", str(tmp_path / "profile.toml"))
    ended = run_queuey("serve", "--port", "0", *places, *options)
    assert (ended.returncode, "queuey app create shop" in ended.stderr) == (2, True)


def test_alone(tmp_path: Path) -> None:
    """Alone it is at /, for one application, with health beside it and nothing of the service's own API.

    On a store that answers before a message is on a disk it does not start, unless told to: then it warns.
    """
    options = ["--sync", "normal", "--facade", "mq", "--app", "shop"]
    ended = run_queuey("serve", "--port", "0", "--data", str(tmp_path / "data"), *options)
    assert (ended.returncode, "unsynced = true" in ended.stderr) == (4, True)
    with Served(tmp_path, [*options, *write_settings_file(tmp_path, SHORT_REDELIVERY_SETTINGS)]) as served:
        served.wait_for("MQ answers before a message is on a disk")
        mq = Facade(served.port)
        first = post(mq, "metrics")
        assert id_of(fetch_until(mq, "metrics", 200)) == first
        assert mq.call("GET", "/v1/queuey/metrics").status == 404
        assert mq.call("GET", "/v1").status == 404
        assert mq.call("GET", "/__heartbeat__").status == 200
        assert b"queuey_" in mq.call("GET", "/__metrics__").body
        # It is delivered again, under its name, which its first reader may use as well.
        assert id_of(fetch_until(mq, "metrics", 200)) == first
        assert mq.call("DELETE", f"/metrics/messages/{first}").status == 202
        second = post(mq, "metrics")
        assert id_of(fetch_until(mq, "metrics", 200)) == second
