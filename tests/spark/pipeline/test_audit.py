"""Audits: every kind of difference between receipts and messages is reported as that kind."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queuey.client.calls.send_calls import Outgoing
from queuey.client.receipts import Journal, SentMessage
from queuey.model import ids
from queuey.model.messages import Message, NewMessage, OffsetChange, Queue
from queuey.pipeline.archive import archive_job
from queuey.pipeline.audit import audit_job, body_hashes, receipt_columns, receipt_join
from queuey.pipeline.audit.audit_job import Account, Audit, Passed
from queuey.pipeline.options import AuditOptions
from queuey.spark.errors import OptionError
from queuey.spark.source import columns
from queuey.storage import bridge
from tests.backends import APP
from tests.spark.kept import Kept
from tests.spark.pipeline.archive import archives
from tests.spark.pipeline.archive.archives import HOUR, last_hour, make_past_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TTL = 3600


class Receipts:
    """The receipts of producers, in a file, and audits of them."""

    def __init__(self, spark: SparkSession, kept: Kept, path: Path) -> None:
        self.path = path
        self._spark = spark
        self._kept = kept

    def add(
        self,
        queue: str,
        *messages: Message,
        delay: float = 0.01,
        ttl: int | None = None,
        **other: Any,  # noqa: ANN401 - fields of a line
    ) -> None:
        with closing(Journal(self.path, APP)) as journal:
            for message in messages:
                sent, at = SentMessage.of(Outgoing(message.body, ttl=ttl)), ids.ticks_to_seconds(message.ticks) + delay
                journal.write([journal.make_line(queue, sent, at, (message.partition, message.id), **other)])

    def add_unknown(self, queue: str, *texts: str) -> None:
        with closing(Journal(self.path, APP)) as journal:
            for text in texts:
                sent = SentMessage.of(Outgoing(text))
                journal.write([journal.make_line(queue, sent, journal.now(), outcome="unknown")])

    def audit(self, **options: Any) -> Audit:  # noqa: ANN401 - of the options
        wanted = AuditOptions(receipts=(str(self.path),), store=self._kept.store_options, **options)
        return audit_job.run(self._spark, wanted)


@pytest.fixture
def told(spark: SparkSession, embedded: Kept, tmp_path: Path) -> Receipts:
    return Receipts(spark, embedded, tmp_path / "receipts.jsonl")


def post_messages(kept: Kept, queue: Queue, *bodies: str) -> list[Message]:
    return kept.post(queue, [NewMessage(body, n % queue.partitions + 1, TTL) for n, body in enumerate(bodies)])


def delete(kept: Kept, queue: Queue, messages: Iterable[Message]) -> None:
    bridge.run(kept.store.messages.delete(queue, [(one.partition, one.position) for one in messages]))


def kinds(found: Audit) -> dict[str, set[str]]:
    by_kind: dict[str, set[str]] = {}
    for sample in found.samples:
        by_kind.setdefault(sample.kind, set()).add(sample.id)
    return by_kind


def test_all_is_well(embedded: Kept, told: Receipts) -> None:
    """Accepted messages are stored once and unchanged, in every partition, and groups stand where they reported."""
    queue = embedded.queue(partitions=2)
    messages = post_messages(embedded, queue, *(f"body {n}" for n in range(40)))
    told.add("orders", *messages)
    bridge.run(embedded.store.offsets.set_offsets(queue, "g", [OffsetChange(1, messages[10].position)]))
    bridge.run(embedded.store.offsets.set_offsets(queue, "h", [OffsetChange(2, messages[39].position)]))
    report = told.audit(groups=("g", "h"))
    assert report.sound
    groups = {"g": Passed(6, 34, 0), "h": Passed(20, 20, 0)}
    assert report.total == Account(accepted=40, present=40, groups=groups)
    assert report.partitions["orders"][2].groups == {"g": Passed(0, 20, 0), "h": Passed(20, 0, 0)}
    assert (report.lines, report.broken, report.foreign, report.strays, report.samples) == (40, 0, 0, 0, ())


def test_whatever_is_wrong_is_found(embedded: Kept, told: Receipts) -> None:
    """Lost, altered, duplicate, late, expired and delayed messages are each counted as what they are, and named."""
    queue = embedded.queue(partitions=2)
    fine, lost, altered, doubled, late, *others = post_messages(
        embedded, queue, "a", "b", "c", "d", "e", "d", "u", "u", "v", "s"
    )
    copy, answer, surplus, put, _stray = others
    told.add("orders", fine, lost, altered, doubled)
    told.add("orders", late, delay=30.0)
    told.add_unknown("orders", "u", "never stored")
    told.add("orders", put, outcome="unknown", put=True)
    hour = ids.seconds_to_ticks(ids.ticks_to_seconds(fine.ticks) - 3600)
    told.add("orders", Message(hour, 7, 1, 0, "x"), ttl=60)
    [due] = bridge.run(embedded.store.messages.append(queue, [NewMessage("w", 1, TTL, delay=500.0)]))
    told.add("orders", Message(*due, 1, 0, "w"), delay=-500.0)
    delete(embedded, queue, [lost])
    place = altered.partition, altered.position
    bridge.run(embedded.store.messages.put(queue, [place], NewMessage("C", altered.partition, TTL)))
    with told.path.open("a") as file:
        file.write('{"torn\n\n{"queue":"orders","sha256":"00","size":1,"at":1.0}\n')
        file.write(json.dumps({"queue": "orders", "app": "x", "partition": 1, "id": fine.id} | body(b"")) + "\n")
    report = told.audit()
    assert not report.sound
    assert report.total == Account(
        accepted=7, present=4, missing=1, expired=1, ahead=1, copies=2, differs=1, late=1, maybe=1, found=1
    )
    assert (report.lines, report.broken, report.foreign) == (13, 2, 1)
    assert (report.doubtful, report.answered, report.strays) == (2, 1, 4)
    assert kinds(report) == {
        "missing": {lost.id},
        "differs": {altered.id},
        "copies": {copy.id, max(answer, surplus, key=lambda one: one.position).id},
        "late": {late.id},
    }
    assert told.audit(copies=False).total.copies == 0


def test_late_is_what_readers_may_have_passed(embedded: Kept, told: Receipts) -> None:
    """An answer is late if readers of the queue may have passed it, unless the caller sets another time."""
    delayed = embedded.queue(read_delay=60)
    ago, expires = (ids.seconds_to_ticks(time.time() + seconds) for seconds in (-100, TTL))
    early, late = (Message(ago + number, 7, 1, expires, "x") for number in range(2))
    # In the past: readers of this queue stay a minute behind.
    bridge.run(embedded.store.bulk.load(delayed, [early, late]))
    told.add("orders", early, delay=30.0)
    told.add("orders", late, delay=90.0)
    assert [told.audit(late=late).total.late for late in (None, 20.0)] == [1, 2]


def body(content: bytes) -> dict[str, object]:
    return {"sha256": sha256(content).hexdigest()[:32], "size": len(content), "at": 1.0}


def test_queues_that_are_gone_and_queues_of_another_name(embedded: Kept, told: Receipts) -> None:
    """Messages of a deleted queue are missing; those of a replayed queue are looked up in the other one."""
    queue = embedded.queue("first")
    messages = post_messages(embedded, queue, "a", "b", "c")
    told.add("first", *messages)
    told.add("gone", *messages[:1])
    second = embedded.queue("second")
    bridge.run(embedded.store.bulk.load(second, messages[:2]))
    report = told.audit(names={"first": "second"}, samples=1)
    assert report.partitions == {
        "gone": {1: Account(accepted=1, missing=1)},
        "second": {1: Account(accepted=3, present=2, missing=1)},
    }
    assert len(report.samples) == 1
    assert told.audit(queues=("first",)).sound


def test_what_is_archived_is_present(spark: SparkSession, embedded: Kept, told: Receipts, tmp_path: Path) -> None:
    """Expired messages that are archived are present; an archive alone covers only up to its last bucket."""
    queue = make_past_queue(embedded, "orders", 60, hours=2)
    earlier, *messages = sorted(embedded.all(queue), key=lambda one: one.position)
    archive_job.archive(spark, archives.options(embedded, tmp_path / "archive"), print)
    told.add("orders", *messages)
    told.add("orders", *post_messages(embedded, queue, "new"))
    delete(embedded, queue, [earlier, *messages[:20]])
    where = {"archive": str(tmp_path / "archive")}
    both = told.audit(**where)
    assert both.total == Account(accepted=60, present=60, archived=59)
    assert (both.sound, both.strays) == (True, 0)
    alone = told.audit(only_archive=True, **where)
    assert alone.total == Account(accepted=60, present=59, archived=59, ahead=1)
    assert told.audit().total.missing == 20


def test_what_an_archive_has_lost_is_missing(
    spark: SparkSession, embedded: Kept, told: Receipts, tmp_path: Path
) -> None:
    """A message that was alive when its bucket was archived, but is not in the archive, is missing and not expired."""
    queue, to = make_past_queue(embedded, "orders", 30, hours=3), tmp_path / "archive"
    archive_job.archive(spark, archives.options(embedded, to), print)
    path = min((to / "manifests/queue=orders").glob("*.json"))
    end = ids.seconds_to_ticks(last_hour() - 2 * HOUR)
    archived = datetime.fromtimestamp(ids.ticks_to_seconds(end), UTC).isoformat()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"archived": archived}))
    told.add("orders", *(one for one in embedded.all(queue) if one.ticks < end), ttl=1700)
    delete(embedded, queue, embedded.all(queue))
    where = {"archive": str(to), "margin": 0.0}
    assert told.audit(**where).sound
    shutil.rmtree(min((to / "messages").glob("run=*/queue=orders/bucket=*"), key=lambda place: place.name))
    report = told.audit(**where)
    # One every six minutes; those of the first 1900 seconds had expired when the hour was over.
    assert (report.total.missing, report.total.expired) == (4, 6)


def test_no_receipts_are_no_success_by_chance(embedded: Kept, told: Receipts) -> None:
    """Missing files are an error, and contradictory options are one before anything begins."""
    with pytest.raises(OptionError, match="no receipts"):
        told.audit()
    told.path.write_text("")
    with pytest.raises(OptionError, match="no receipts of this application in these files"):
        told.audit()
    told.add("orders", *post_messages(embedded, embedded.queue(), "a"))
    with pytest.raises(OptionError, match="no receipts of queue 'order'"):
        told.audit(queues=("order",))
    told.path.rename(told.path.with_name("_receipts.jsonl"))
    for pattern in ("_receipts.jsonl", "*.jsonl"):
        told.path = told.path.with_name(pattern)
        with pytest.raises(OptionError, match="ignores files with such names"):
            told.audit()
    for wrong in ({"only_archive": True}, {"late": 0.0}, {"archive": "x", "only_archive": True, "groups": ("g",)}):
        with pytest.raises(OptionError):
            AuditOptions(receipts=("x",), store=embedded.store_options, **wrong)


def test_ids_are_read_alike_in_sql(spark: SparkSession) -> None:
    """SQL computes times and positions of ids as Python does, over the whole range of ids."""
    rng = random.Random(5)
    positions = [(rng.getrandbits(60), rng.getrandbits(64) - (1 << 63)) for _ in range(300)] + [ids.FIRST, ids.LAST]
    frame = spark.createDataFrame([(ids.to_hex(one), *one) for one in positions], "id string, ticks long, low long")
    rows = frame.select(
        "ticks", "low", receipt_columns.id_to_ticks("id").alias("t"), receipt_columns.id_to_position("id").alias("p")
    ).collect()
    assert all(row.t == row.ticks and row.p == columns.position_text((row.ticks, row.low)) for row in rows)


def test_ids_that_an_archive_has_twice(spark: SparkSession) -> None:
    """A duplicate in an archive is found, also beside the store; once in both is not a duplicate."""
    once, twice = (ids.to_hex((ids.EPOCH_TICKS, number)) for number in range(2))
    rows = {id_: ("q", 1, id_, b"\0" * 16, 1) for id_ in (once, twice)}
    stored = spark.createDataFrame([*rows.values()], body_hashes.SCHEMA)
    kept = spark.createDataFrame([rows[id_] for id_ in (once, twice, twice)], body_hashes.SCHEMA)
    lines = spark.createDataFrame(
        [(*row, 5.0, None, False, False) for row in rows.values()],
        "queue string, partition int, id string, hash binary, size long, at double, ttl long, put boolean, "
        "unknown boolean",
    )
    about = spark.createDataFrame([("q", 60.0, 1 << 59, 5.0)], receipt_join.QUEUES_SCHEMA)
    promised, present = receipt_join.find_promised(lines, about), receipt_join.join_present(stored, kept)
    found = receipt_join.classify_ids(promised, present, [], now=9.0, late=60.0, margin=0.0).collect()
    counts = {item.id: (item.twice, item.archived, item.present) for item in found}
    assert counts == {once: (0, 1, 1), twice: (1, 1, 1)}
