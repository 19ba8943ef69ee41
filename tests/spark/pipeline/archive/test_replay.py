"""Replays of archives: exact, once, and only of the selected part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.errors import ParseException

from queuey.model import ids
from queuey.model.errors import QueueNotFound
from queuey.model.ids import LOW_MIN, TICKS_PER_SECOND
from queuey.model.messages import Message, Queue
from queuey.pipeline.archive import replay as job
from queuey.pipeline.archive.archive_job import archive
from queuey.pipeline.archive.manifest import ArchiveDamaged
from queuey.pipeline.archive.replay import ReplayReport
from queuey.pipeline.options import ReplayOptions
from queuey.spark.errors import OptionError
from queuey.spark.options import Pattern, Subscribe
from queuey.storage import bridge
from tests.backends import APP
from tests.replacing import replace
from tests.spark.kept import Kept, keep, quiet
from tests.spark.pipeline.archive.archives import HOUR, list_contents, make_past_queue, options
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Replay = Any


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture(scope="module")
def archived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store and the archive of its queue ``orders``: 90 messages of three hours in three partitions."""
    place = tmp_path_factory.mktemp("archived")
    with keep(place) as kept:
        make_past_queue(kept, "orders", 90, hours=3, partitions=3, ttl=86_400)
        assert archive(spark, options(kept, place / "archive"), quiet).messages == 90
    return place


@pytest.fixture
def embedded(archived: Path, tmp_path: Path) -> Iterator[Kept]:
    """A copy of the store, beside a copy of its archive."""
    shutil.copytree(archived, tmp_path, dirs_exist_ok=True)
    with keep(tmp_path) as kept:
        yield kept


@pytest.fixture
def orders(embedded: Kept) -> Queue:
    return bridge.run(embedded.store.catalogue.queue(APP, "orders", fresh=True))


@pytest.fixture
def replay(spark: SparkSession, embedded: Kept, to: Path) -> Replay:
    """Replays the archive to its store, of the queue ``orders`` unless chosen otherwise."""

    def run(**more: Any) -> ReplayReport:  # noqa: ANN401 - fields of the options
        chosen = ReplayOptions(store=embedded.store_options, archive=str(to), selection=Subscribe(("orders",)))
        return job.replay(spark, msgspec.structs.replace(chosen, **more), quiet)

    return run


def content(messages: list[Message]) -> list[tuple[Any, ...]]:
    return [row[:-1] for row in list_contents(messages)]


def messages_in(kept: Kept, name: str) -> list[Message]:
    return kept.all(bridge.run(kept.store.catalogue.queue(APP, name, fresh=True)))


def test_into_a_new_queue(embedded: Kept, orders: Queue, replay: Replay) -> None:
    """Replays write the same messages with the same ids to a queue like the archived one, however often they run.

    Messages can keep their expiry.
    """
    planned = replay(into="copy", dry_run=True)
    with pytest.raises(QueueNotFound):
        messages_in(embedded, "copy")
    replay(into="kept", keep_expiry=True)
    assert list_contents(messages_in(embedded, "kept")) == list_contents(embedded.all(orders))
    first, second = replay(into="copy"), replay(into="copy")
    assert (planned.messages, first.messages, second.messages) == (90, 90, 90)
    assert [one.queues[0].created for one in (planned, first, second)] == [True, True, False]
    assert first.run == second.run == planned.run
    copy = bridge.run(embedded.store.catalogue.queue(APP, "copy", fresh=True))
    assert (copy.partitions, copy.ttl, copy.consistency) == (orders.partitions, orders.ttl, orders.consistency)
    assert content(messages_in(embedded, "copy")) == content(embedded.all(orders))
    now = ids.now_ticks()
    assert all(one.expires <= now + 86_400 * TICKS_PER_SECOND for one in messages_in(embedded, "copy"))


def test_fresh_ids_in_the_old_order(embedded: Kept, orders: Queue, replay: Replay) -> None:
    """With fresh ids every message is written once, in order, to the requested number of partitions."""
    before = ids.now_ticks()
    reports = [replay(into="again", fresh=True, partitions=2, lead=3) for _ in range(2)]
    assert [(one.messages, one.written) for one in reports] == [(90, 90), (90, 0)]
    until(lambda: len(messages_in(embedded, "again")) == 90)
    messages = messages_in(embedded, "again")
    assert min(one.ticks for one in messages) > before
    for partition in (1, 2):
        old = [one for one in embedded.all(orders) if (one.partition - 1) % 2 + 1 == partition]
        new = [one.body for one in messages if one.partition == partition]
        assert new == [one.body for one in sorted(old, key=lambda one: one.position)]


def test_one_id_in_several_partitions(spark: SparkSession) -> None:
    """Messages with one id, from several partitions merged into one, have the same numbers in each replay."""
    rows = [("copy", 1, "p", "orders", origin) for origin in (3, 1, 2)]
    frame = spark.createDataFrame(rows, "queue string, partition int, position string, source string, origin int")
    assert [row.origin for row in job._number_rows(frame, ["queue", "partition", "origin"]).collect()] == [1, 2, 3]


def test_conditions_that_choose_others_each_time(embedded: Kept, orders: Queue, replay: Replay) -> None:
    """A condition is one expression without random functions; where messages are numbered, also without the clock."""
    for fresh, where in ((False, "rand() < 0.5"), (True, "rand() < 0.5"), (True, "expires > now()")):
        with pytest.raises(OptionError, match="depends on"):
            replay(into="new", fresh=fresh, where=where)
    with pytest.raises(ParseException):
        replay(into="new", where="partition 1")
    assert replay(into="new", where="expires > now() -- still alive", dry_run=True).messages == 90
    assert [queue.name for queue in bridge.run(embedded.store.catalogue.list_queues(APP))] == ["orders"]


def test_a_choice(embedded: Kept, orders: Queue, replay: Replay) -> None:
    """The replay is limited by time, with an exclusive end, and by a condition."""
    lower = min(one.ticks for one in embedded.all(orders)) + HOUR * TICKS_PER_SECOND
    upper = lower + HOUR * TICKS_PER_SECOND + 1
    expected = [one for one in embedded.all(orders) if lower <= one.ticks < upper and isinstance(one.body, bytes)]
    report = replay(into="part", lower=(lower, LOW_MIN), upper=(upper, LOW_MIN), where="valueType = 'bytes' OR false")
    assert (report.buckets, report.messages) == (2, len(expected))
    assert len(expected) > 5
    assert content(messages_in(embedded, "part")) == content(expected)


def test_what_is_refused(embedded: Kept, orders: Queue, replay: Replay, to: Path) -> None:
    """Existing targets, names of other replays, too few partitions and damaged archives are refused."""
    with pytest.raises(OptionError, match="exists"):
        replay()
    small = embedded.queue("small", partitions=2)
    for more in ({"into": "small", "existing": True}, {"into": "new", "partitions": 2}):
        with pytest.raises(OptionError, match="fewer partitions need fresh ids"):
            replay(**more)
    replay(into="one", run="mine", where="partition = 1")
    with pytest.raises(OptionError, match="another replay"):
        replay(into="one", run="mine", existing=True)
    with pytest.raises(QueueNotFound, match="has no messages of queue 'other'"):
        replay(selection=Subscribe(("other",)))
    with pytest.raises(OptionError, match="TTL"):
        replay(ttl=60, keep_expiry=True)
    next(to.glob("messages/*/*/*/*.parquet")).unlink()
    with pytest.raises(ArchiveDamaged, match="is missing, and a manifest lists it"):
        replay(into="new")
    assert embedded.all(small) == []


def test_a_run_that_ended_before_it_wrote(spark: SparkSession, embedded: Kept, orders: Queue, replay: Replay) -> None:
    """A run that created its queue and ended recognises it as its own; a queue made by others is refused."""
    create = type(embedded.store.catalogue).create_queue

    async def die(*parts: Any) -> None:  # noqa: ANN401 - any method
        await create(*parts)
        raise OSError("killed")

    with replace(create, die), pytest.raises(OSError, match="killed"):
        replay(into="copy")
    report = replay(into="copy")
    assert (report.messages, report.queues[0].created) == (90, False)
    embedded.queue("theirs", partitions=3)
    with pytest.raises(OptionError, match="exists"):
        replay(into="theirs")
    assert replay(into="theirs", existing=True).messages == 90


def test_several_queues(spark: SparkSession, embedded: Kept, orders: Queue, replay: Replay, to: Path) -> None:
    """All queues of an archive are restored under their names; several go into one queue only with fresh ids."""
    make_past_queue(embedded, "bills", 20, hours=1)
    archive(spark, options(embedded, to), quiet)
    before = {name: content(messages_in(embedded, name)) for name in ("orders", "bills")}
    with pytest.raises(OptionError, match="only with fresh ids"):
        replay(selection=Pattern(".*"), into="both")
    assert replay(selection=Pattern(".*"), into="both", fresh=True, lead=3).queues[0].sources == ("bills", "orders")
    until(lambda: len(messages_in(embedded, "both")) == 110)
    for name in before:
        bridge.run(
            embedded.store.catalogue.delete_queue(bridge.run(embedded.store.catalogue.queue(APP, name, fresh=True)))
        )
    assert replay(selection=Pattern(".*")).messages == 110
    assert {name: content(messages_in(embedded, name)) for name in before} == before
