"""Receipts on file: accepted messages have a line, refused ones do not, uncertain ones have one that says so."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from queuey.app.service import App
from queuey.client import (
    ApiError,
    AsyncClient,
    ClientError,
    InvalidAnswer,
    Outgoing,
    Receipt,
    ReceiptsError,
    RetryPolicy,
    TransportError,
)
from queuey.client.receipts import Journal, SentMessage
from tests.client.conftest import Connect, opened
from tests.client.live import LOCAL, LOCAL_KEY
from tests.client.scripted import (
    ONE,
    Script,
    break_connection,
    busy,
    message_id,
    ok,
    receipts,
    refuse_connection,
    time_out,
)
from tests.servers.processes import ending

ONCE = RetryPolicy(deadline=0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digest(body: bytes) -> str:
    return sha256(body).hexdigest()[:32]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "receipts.jsonl"


@pytest.fixture
def recording(kind: str, app: App, path: Path) -> Iterator[Any]:
    """A client of either kind on the real service that keeps receipts."""
    with opened(kind, LOCAL, LOCAL_KEY, app, receipts=path) as client:
        yield client


def test_every_way_of_sending_leaves_a_line(recording: Any, path: Path) -> None:  # noqa: ANN401 - either client
    """Each message that the service took has a line with its place, and size and hash of exactly what was stored."""
    queue = recording.create_queue(partitions=2).name
    began = time.time()
    stored = [
        recording.send(queue, "Grüße", ttl=60),
        recording.send(queue, json="a JSON text"),
        recording.send(queue, json={"ä": [1, 2.5]}),
        *recording.send_many(
            queue, [b"\xff\x00", b"plain", Outgoing(json=msgspec.Raw(b' {"kept":  1} '), partition=2)]
        ),
        *recording.send_many(queue, [Outgoing(json=msgspec.Raw(b'"\\u00e4"')), Outgoing(json=None)]),
        *recording.send_iter(queue, (f"m{n}" for n in range(5)), batch=2),
    ]
    recording.put(queue, [stored[0], (2, message_id(9))], json="put", ttl=90)
    receipts = lines(path)
    assert [(line["partition"], line["id"]) for line in receipts[:-2]] == [(one.partition, one.id) for one in stored]
    for line in receipts[1:]:
        body = recording.get_raw(queue, (line["partition"], line["id"])).body
        assert (line["sha256"], line["size"]) == (digest(body), len(body))
    first, *_, put, last = receipts
    assert (first["sha256"], first["ttl"], first["app"]) == (digest("Grüße".encode()), 60, "acme")
    assert (put["id"], put["put"], last["id"], last["ttl"]) == (stored[0].id, True, message_id(9), 90)
    assert all(began <= line["at"] <= time.time() and line["queue"] == queue for line in receipts)
    assert not any("outcome" in line or line.get("put") for line in receipts[:-2])


@pytest.mark.parametrize(
    ("reply", "known"),
    [
        (refuse_connection, True),
        (break_connection, False),
        (time_out, False),
        (busy(outcome="none"), True),
        (busy(outcome="unknown"), False),
        (httpx2.Response(500), False),
        (httpx2.Response(502), False),
        (httpx2.Response(404, json={"error_msg": {"InvalidQueueName": "q"}}), True),
        (httpx2.Response(201, json={"else": 1}), False),
        (receipts(2), False),
    ],
)
def test_what_nobody_knows_has_a_line_that_says_so(
    connect: Connect,
    path: Path,
    reply: Any,  # noqa: ANN401 - what a script replies
    known: bool,  # noqa: FBT001
) -> None:
    """A send that failed leaves no line if it certainly stored nothing, else one of unknown outcome without an id."""
    client = connect(Script(reply), ONE, ONCE, path)
    with pytest.raises((ClientError, ValueError)):
        client.send("q", "x")
    unknown = [(digest(b"x"), 1, "unknown", None)]
    entries = [(line["sha256"], line["size"], line["outcome"], line.get("id")) for line in lines(path)]
    assert entries == ([] if known else unknown)


def test_a_token_that_is_missing_clears_no_doubt(connect: Connect, path: Path) -> None:
    """Where an earlier attempt may have stored the message, a token that is missing changes nothing."""

    def source() -> str:
        if script.requests:
            raise OSError("away")
        return "token"

    script = Script(time_out, httpx2.Response(401, text="no"))
    client = connect(script, ONE, RetryPolicy(), path, token=source)
    with pytest.raises(ClientError) as caught:
        client.send("q", "x")
    assert caught.value.in_doubt
    assert [line["outcome"] for line in lines(path)] == ["unknown"]


def test_a_batch_has_a_line_for_each_message_in_doubt(connect: Connect, path: Path) -> None:
    """The outcomes of a batch's 503 count message by message, and messages of earlier batches keep their lines."""
    script = Script(receipts(2), busy(outcome="unknown", outcomes=["none", "unknown"]))
    client = connect(script, ONE, ONCE, path)
    with pytest.raises(ApiError) as caught:
        list(client.send_iter("q", ["a", "b", "c", "d"], batch=2))
    assert [(line["sha256"], line.get("outcome")) for line in lines(path)] == [
        (digest(b"a"), None),
        (digest(b"b"), None),
        (digest(b"d"), "unknown"),
    ]
    assert caught.value.receipts == ()


def test_a_put_that_failed_may_have_been_carried_out(connect: Connect, path: Path) -> None:
    """A put is sent again after any failure, so that its last one, harmless as it is, does not clear the first."""
    client = connect(Script(break_connection, refuse_connection), ONE, RetryPolicy(), path)
    with pytest.raises(TransportError):
        client.put("q", [message_id(1), (3, message_id(2))], "x")
    receipts = [(line["partition"], line["id"], line["outcome"], line["put"]) for line in lines(path)]
    assert receipts == [(1, message_id(1), "unknown", True), (3, message_id(2), "unknown", True)]


def test_a_send_that_is_called_off_is_in_doubt(path: Path) -> None:
    """If the caller stops waiting for the answer, the outcome of the message is unknown."""

    async def run() -> None:
        reached = asyncio.Event()

        async def hold(_: httpx2.Request) -> httpx2.Response:
            reached.set()
            await asyncio.sleep(600)
            return ok()

        async with AsyncClient(ONE, key="k", transport=httpx2.MockTransport(hold), receipts=path) as client:
            sending = asyncio.ensure_future(client.send("q", "x"))
            await asyncio.wait_for(reached.wait(), 60)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

    asyncio.run(run())
    assert [line["outcome"] for line in lines(path)] == ["unknown"]


def test_a_file_that_cannot_be_written_is_noticed_before_anything_is_sent(connect: Connect, tmp_path: Path) -> None:
    """Receipts that cannot be kept are an error of the client's making, not of its first send."""
    script = Script(receipts())
    for path in (tmp_path, tmp_path / "absent" / "receipts"):
        with pytest.raises(ReceiptsError, match="cannot be written"):
            connect(script, ONE, None, path)
    assert script.requests == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
def test_a_full_disk_says_what_was_stored(connect: Connect) -> None:
    """A stored message without a receipt on file is an error that carries it."""
    with pytest.raises(ReceiptsError, match="No space left") as caught:
        connect(Script(receipts(2)), ONE, None, Path("/dev/full")).send_many("q", ["a", "b"])
    assert [receipt.id for receipt in caught.value.receipts] == [message_id(number) for number in (1, 2)]


def test_a_torn_line_spoils_no_other(path: Path) -> None:
    """What a killed program left half written is ended before the next line begins."""
    path.write_bytes(b'{"queue":"q","par')
    with closing(Journal(path, "acme")) as journal, journal.sending("q", [Outgoing("x")]) as stored:
        stored([Receipt(message_id(1), "1.0", 1)])
    torn, whole = path.read_text().splitlines()
    assert torn == '{"queue":"q","par'
    assert json.loads(whole)["id"] == message_id(1)


@pytest.mark.needs_programs
def test_several_processes_append_whole_lines(path: Path) -> None:
    """Lines of processes that write at the same time are not mixed, and none is lost."""
    program = """
import sys
from queuey.client import Outgoing, Receipt
from queuey.client.receipts import Journal
journal = Journal(sys.argv[1], "acme")
for number in range(300):
    with journal.sending("q" * 40, [Outgoing(f"{sys.argv[2]} {number}")] * 20) as stored:
        stored([Receipt(f"{number:032x}", "1.0", int(sys.argv[2]))] * 20)
"""
    commands = [[sys.executable, "-c", program, str(path), str(one)] for one in range(1, 5)]
    with ExitStack() as started:
        running = [started.enter_context(ending(subprocess.Popen(command))) for command in commands]
        assert [process.wait(300) for process in running] == [0] * 4
    counts: dict[tuple[int, str], int] = {}
    for line in lines(path):
        counts[line["partition"], line["id"]] = counts.get((line["partition"], line["id"]), 0) + 1
    assert counts == {(part, f"{number:032x}"): 20 for part in range(1, 5) for number in range(300)}


def test_an_answer_that_fits_no_message_is_refused(connect: Connect, path: Path) -> None:
    """Receipts are never written beside the wrong messages: too few of them leave all messages in doubt."""
    with pytest.raises(InvalidAnswer):
        connect(Script(receipts(1)), receipts=path).send_many("q", ["a", "b"])
    assert [line["outcome"] for line in lines(path)] == ["unknown", "unknown"]


def test_a_closed_file_takes_no_more(path: Path) -> None:
    """After close nothing is written anywhere, least of all into a file that got the old number."""
    journal = Journal(path, "acme")
    journal.close()
    journal.close()
    with pytest.raises(ReceiptsError, match="closed"):
        journal.write([journal.make_line("q", SentMessage.of(Outgoing("x")), 1.0)])
