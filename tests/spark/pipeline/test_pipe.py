"""Messages through SQL or a function into another queue, each exactly once."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from queuey.app.application import make_app
from queuey.client import Client, Outgoing
from queuey.model.errors import QueueNotFound
from queuey.model.messages import Message, NewMessage, Queue
from queuey.pipeline import pipe as job
from queuey.pipeline.options import Pipe
from queuey.spark.errors import OptionError
from queuey.spark.options import Subscribe
from queuey.storage import bridge
from tests.backends import APP
from tests.in_process import InProcess
from tests.pages import ROOT, runnable_blocks
from tests.spark.kept import TTL, Kept, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAD = 0.5
ALL = "SELECT * FROM messages"


def post(kept: Kept, queue: Queue, count: int) -> list[Message]:
    bodies = [f'{{"n":{number},"kind":"k{number % 3}"}}' for number in range(count)]
    return kept.post(queue, [NewMessage(body, n % queue.partitions + 1, TTL) for n, body in enumerate(bodies)])


def plan(kept: Kept, place: Path, **fields: Any) -> Pipe:  # noqa: ANN401 - the fields of a Pipe
    given = {"source": Subscribe(("orders",)), "target": "copies", "start": "earliest", "once": True, "lead": LEAD}
    transform = {} if "function" in fields else {"sql": ALL}
    return Pipe(
        **{"store": kept.store_options, "checkpoint": str(place / "checkpoint"), **given, **transform, **fields}
    )


def bodies(messages: list[Message]) -> Counter[tuple[int, str | bytes]]:
    return Counter((message.partition, message.body) for message in messages)


def test_messages_travel_whole_and_once(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """All of a message but its id and time arrives, in order; a second run copies only new messages."""
    queue = embedded.queue(partitions=2)
    sent = embedded.fill(queue, 40)
    pipe = plan(embedded, tmp_path, create=True, group="copying")
    done = job.run(spark, pipe, quiet, Event())
    assert (done.messages, done.batches, done.rows) == (40, 1, 40)
    copies = bridge.run(embedded.store.catalogue.queue(queue.application, "copies", fresh=True))
    assert copies.partitions == 2

    def told(messages: list[Message]) -> list[tuple[Any, ...]]:
        return [(one.partition, one.body, one.meta, one.expires // 10) for one in messages]

    assert told(embedded.settle_and_read("copies")) == told(sorted(sent, key=lambda one: (one.partition, one.position)))
    more = embedded.fill(queue, 10)
    again = job.run(spark, pipe, quiet, Event())
    assert (again.query, again.messages) == (done.query, 10)
    assert bodies(embedded.settle_and_read("copies")) == bodies(sent + more)


def test_the_pages_first_pipe_moves_json(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """The page's first example selects exactly the JSON messages, in one or many tasks."""
    (sql,) = re.findall(r'queuey pipeline pipe orders --sql "(.*)"', (ROOT / "docs" / "pipeline.md").read_text())
    queue = embedded.queue(partitions=2)
    embedded.queue("copies", partitions=2)
    bridge.run(embedded.store.applications.add_key(APP, sha256(b"key").digest()))
    transport = InProcess(make_app(embedded.store))
    with Client(f"http://127.0.0.1/v1/{APP}/", key="key", transport=transport) as client:
        client.send("orders", "text", partition=1)
        client.send("orders", json={"n": 1}, partition=1)
        client.send_many("orders", [Outgoing(json=[2], partition=2), Outgoing(b"\xff", partition=2)])
    embedded.settle(queue)
    job.run(spark, plan(embedded, tmp_path, sql=sql), quiet, Event())
    assert bodies(embedded.settle_and_read("copies")) == Counter({(1, '{"n":1}'): 1, (2, "[2]"): 1})


def test_groups_are_written_once_however_they_are_ordered(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """Shuffled rows are sorted, so that a repeated micro-batch writes the same messages."""
    embedded.queue("copies")
    post(embedded, embedded.queue(partitions=2), 30)
    grouped = (
        "SELECT to_json(struct(kind, count(*) AS messages)) AS value, 'json' AS valueType "
        "FROM (SELECT get_json_object(CAST(value AS STRING), '$.kind') AS kind FROM messages) GROUP BY kind"
    )
    pipe = plan(embedded, tmp_path, sql=grouped, mode="update", watermark="600.0 seconds")
    assert job.run(spark, pipe, quiet, Event()).rows == 3
    counts = embedded.settle_and_read("copies")
    assert sorted(str(one.body) for one in counts) == [f'{{"kind":"k{n}","messages":10}}' for n in range(3)]
    # As after a crash between the write and the note that the micro-batch is done.
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    job.run(spark, pipe, quiet, Event())
    assert embedded.settle_and_read("copies") == counts


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user that only the driver can import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "users_own.py"
    path.write_text(
        "from pyspark.sql.functions import udf\n"
        "def loud(body):\n    return body.decode().upper()\n"
        "def louder(frame):\n    return frame.where('partition = 1').withColumn('value', udf(loud)('value'))\n"
        "def wrong(frame):\n    return 7\n"
        "def failing(body):\n    raise ValueError('no such order: ' + body.decode())\n"
        "def fail(frame):\n    return frame.withColumn('value', udf(failing)('value'))\n"
    )
    yield path
    sys.modules.pop("users_own", None)


def test_a_function_and_its_errors(spark: SparkSession, embedded: Kept, tmp_path: Path, module: Path) -> None:
    """Helpers of the function run in tasks without an installation; their errors are shown in one line."""
    from queuey.spark.failures import explain  # noqa: PLC0415 - as in the command

    embedded.queue("copies")
    sent = post(embedded, embedded.queue(partitions=2), 6)
    job.run(spark, plan(embedded, tmp_path, function="users_own:louder"), quiet, Event())
    expected = [str(one.body).upper() for one in sent if one.partition == 1]
    assert [one.body for one in embedded.settle_and_read("copies")] == expected
    with pytest.raises(Exception, match=r".") as failed:
        job.run(spark, plan(embedded, tmp_path / "other", function="users_own:fail"), quiet, Event())
    failure = explain(failed.value)
    assert failure is not None
    assert failure.text.startswith("ValueError: no such order: {")
    for name, says in (
        ("users_own", "is not module:function"),
        ("users_own:nothing", "has no function nothing"),
        ("nowhere:function", "No module named 'nowhere'"),
        ("users_own:wrong", "returned int, not a DataFrame"),
    ):
        with pytest.raises(OptionError, match=says):
            job.preview(spark, plan(embedded, tmp_path, function=name))


def test_the_function_of_the_page(spark: SparkSession, embedded: Kept, tmp_path: Path, module: Path) -> None:
    """The transform in the documentation works."""
    [program] = runnable_blocks("docs/pipeline.md", languages={"python"})
    module.write_text(program.text)
    items = [NewMessage(body, 1, TTL) for body in ('{"title":"long","text":"…"}', '{"text":"…"}')]
    embedded.post(embedded.queue(), items)
    preview = job.preview(spark, plan(embedded, tmp_path, function="users_own:shorten"))
    assert [row["value"] for row in preview.rows] == ["long"]


def test_it_stops_after_the_micro_batch_under_way(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """A stopped pipe ends cleanly, and after a restart copies the rest: nothing is missing or duplicate."""
    embedded.queue("copies", partitions=2)
    sent = post(embedded, embedded.queue(partitions=2), 200)
    pipe = plan(embedded, tmp_path, once=False, every=0.0, most=20)
    stop, said = Event(), []

    def say(text: str) -> None:
        said.append(text)
        if "messages in" in text:
            stop.set()

    first = job.run(spark, pipe, say, stop)
    assert 0 < first.messages < 200
    assert len(said) > 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stream")]
    job.run(spark, msgspec.structs.replace(pipe, once=True), quiet, Event())
    assert bodies(embedded.settle_and_read("copies")) == bodies(sent)


def test_what_would_be_written(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """A preview shows columns and rows and copies nothing; columns that are merely passed along are left out."""
    post(embedded, embedded.queue(), 3)
    changed = "SELECT *, get_json_object(CAST(value AS STRING), '$.kind') AS key FROM messages"
    preview = job.preview(spark, plan(embedded, tmp_path, sql=changed, ttl=60))
    assert list(preview.columns) == ["value", "valueType", "contentType", "headers", "key"]
    assert ([row["key"] for row in preview.rows], preview.sorted) == (["k0", "k1", "k2"], False)
    routed = job.preview(spark, plan(embedded, tmp_path, target=None))
    assert [row["queue"] for row in routed.rows] == ["orders"] * 3
    counted = "SELECT CAST(count(*) AS STRING) AS value FROM messages"
    assert job.preview(spark, plan(embedded, tmp_path, sql=counted)).sorted
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sql": "SELECT value, 1 AS colour FROM messages"}, "no column 'colour'"),
        ({"sql": "SELECT 'a' AS value"}, "does not read the stream"),
        ({"source": Subscribe(("nothing",))}, "nothing"),
        ({"target": "missing"}, "missing"),
    ],
)
def test_what_cannot_be_done_is_said_before(
    spark: SparkSession, embedded: Kept, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    """A pipe that cannot run is refused before a checkpoint is created or a task started."""
    embedded.queue()
    embedded.queue("copies")
    with pytest.raises((OptionError, QueueNotFound), match=says):
        job.run(spark, plan(embedded, tmp_path, **fields), quiet, Event())
    assert not (tmp_path / "checkpoint").exists()
