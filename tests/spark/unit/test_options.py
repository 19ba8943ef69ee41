"""The meaning of options of reads and writes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import LOW_MAX, LOW_MIN, TICKS_MAX
from queuey.spark.errors import OptionError
from queuey.spark.options import (
    Assign,
    Pattern,
    StoreOptions,
    Subscribe,
    check_names,
    check_read,
    read_options,
    store_options,
    write_options,
)
from queuey.spark.start_and_end import EARLIEST, LATEST, At

ID = "79751d50e4f211f1a9818be9b2eb5718"
READ = {"subscribe": "a"}


def test_defaults_of_a_read() -> None:
    """A batch reads from the earliest to the latest message, a stream only later ones."""
    batch, stream = read_options(READ, streaming=False), read_options(READ, streaming=True)
    assert (batch.starting.find_bound("a", 1), batch.ending.find_bound("a", 9)) == (EARLIEST, LATEST)
    assert (stream.starting.find_bound("a", 1), stream.ending.find_bound("a", 9)) == (LATEST, LATEST)
    assert batch.fail_on_data_loss
    assert not batch.headers
    assert (batch.max_offsets, batch.min_partitions, batch.max_records, batch.group) == (None, None, None, None)


def test_all_of_a_read() -> None:
    """Option names are case-insensitive; numbers and switches are parsed from texts."""
    options = read_options(
        {
            "SUBSCRIBE": "a",
            "failondataloss": "OFF",
            "maxoffsetspertrigger": "10",
            "minPartitions": "3",
            "maxRecordsPerPartition": "7",
            "includeHeaders": "true",
            "group": "g",
            "APPLICATION": "acme",
        },
        streaming=True,
    )
    assert (options.fail_on_data_loss, options.headers, options.group) == (False, True, "g")
    assert (options.max_offsets, options.min_partitions, options.max_records) == (10, 3, 7)
    assert options.store.application == "acme"


@pytest.mark.parametrize(
    ("options", "selection"),
    [
        ({"subscribe": " b, a,,b "}, Subscribe(("b", "a"))),
        ({"subscribePattern": "a.*"}, Pattern("a.*")),
        ({"assign": '{"a":[3,1,"5-6"],"b":[2]}'}, Assign((("a", (1, 3, 5, 6)), ("b", (2,))))),
    ],
)
def test_selections(options: dict[str, str], selection: Subscribe | Pattern | Assign) -> None:
    """Queues are selected by name, by pattern, or partition by partition."""
    assert read_options(options, streaming=False).selection == selection


@given(st.integers(0, TICKS_MAX), st.integers(LOW_MIN, LOW_MAX))
def test_offsets_are_ids(ticks: int, low: int) -> None:
    """An offset is the id of a message, and means its position."""
    text = f'{{"a":{{"1":"{ids.to_hex((ticks, low))}","2-3":-2}}}}'
    bounds = read_options({**READ, "startingOffsets": text}, streaming=False).starting
    assert bounds.find_bound("a", 1) == At((ticks, low))
    assert bounds.find_bound("a", 2) == bounds.find_bound("a", 3) == EARLIEST


def test_precedence_of_starts() -> None:
    """A timestamp wins over timestamps of partitions, which win over offsets, as with Kafka."""
    given_by = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"a":{"1":2000}}',
        "startingTimestamp": "1000",
    }
    starts = []
    while given_by:
        starts.append(read_options({**READ, **given_by}, streaming=True).starting.find_bound("a", 1))
        given_by.popitem()
    second = ids.TICKS_PER_SECOND
    assert starts == [At((ids.EPOCH_TICKS + second * n, LOW_MIN)) for n in (1, 2)] + [EARLIEST]


def test_bounds_name_all_partitions() -> None:
    """Offsets that omit a partition are refused, and so are those of other queues and partitions."""
    bounds = read_options({**READ, "startingOffsets": f'{{"a":{{"1":"{ID}","2":-2}}}}'}, streaming=False).starting
    bounds.check({"a": 2})
    with pytest.raises(OptionError, match="startingOffsets does not name partition 3 of queue 'a'"):
        bounds.find_bound("a", 3)
    with pytest.raises(OptionError, match="startingOffsets names partition 2 of queue 'a', which has 1"):
        bounds.check({"a": 1})
    with pytest.raises(OptionError, match="startingOffsets names queue 'a', which is not among those read"):
        bounds.check({"b": 1})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "a", "assign": '{"a":[1]}'}, ", not subscribe and assign"),
        ({"subscribe": " , "}, "subscribe names no queue"),
        ({"subscribePattern": "("}, "subscribePattern is not a regular expression"),
        ({"assign": "a"}, 'assign is not of the form {"queue":[1,2]}'),
        ({"assign": '{"a":[0]}'}, "'0' instead of a partition number"),
        ({**READ, "startingOffsets": "newest"}, "startingOffsets is not of the form"),
        ({**READ, "startingOffsets": '{"a":{"1":12}}'}, "12 instead of a message id"),
        ({**READ, "startingOffsets": "latest"}, "A batch read cannot start at latest"),
        ({**READ, "startingOffsets": '{"a":{"1":-1}}'}, "A batch read cannot start at latest"),
        ({**READ, "endingOffsets": "earliest"}, "A read cannot end at earliest"),
        ({**READ, "startingTimestamp": "yesterday"}, "'yesterday' instead of milliseconds since 1970"),
        ({**READ, "failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe': it has to be true or false"),
        ({**READ, "minPartitions": "0"}, "minPartitions is '0': it has to be a whole number from 1 to"),
        ({**READ, "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger does not apply to a batch read"),
        ({**READ, "ttl": "5"}, "ttl does not apply to a batch read"),
        ({**READ, "application": ""}, "application is empty"),
        ({**READ, "endingOffsets": "1"}, "endingOffsets does not apply to a streaming read"),
        ({**READ, "endingOffsetsByTimestamp": "1"}, "endingOffsetsByTimestamp does not apply to a streaming read"),
    ],
)
def test_wrong_reads(options: dict[str, str], says: str) -> None:
    """An impossible read is refused in one line that names the option."""
    with pytest.raises(OptionError) as refused:
        read_options(options, streaming="streaming" in says)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kafka.bootstrap.servers", "kafka.bootstrap.servers of Kafka is not supported.*store"),
        ("kafka.group.id", "of Kafka.*group"),
        ("groupIdPrefix", "of Kafka.*group"),
        ("startingOffset", "Unknown option startingOffset. Did you mean startingOffsets"),
        ("zzz", "Unknown option zzz"),
        ("path", "Queues have no path"),
    ],
)
def test_unknown_names(name: str, says: str) -> None:
    """An unknown option is refused with the nearest known one, also if it is Kafka's."""
    for refuse in (check_names, check_read, lambda given: read_options(given, streaming=True)):
        with pytest.raises(OptionError, match=says):
            refuse({**READ, name: "1"})


def test_an_early_look_takes_what_either_kind_takes() -> None:
    """Before it is known whether a read is a stream, options of both are accepted, and wrong selections refused."""
    assert check_read({**READ, "group": "g", "endingOffsets": "latest", "includeHeaders": "true"})
    assert not check_read(READ)
    with pytest.raises(OptionError, match="exactly one"):
        check_read({})


def test_store_options() -> None:
    """Settings of the store are options by their names; others are left alone, and paths are made absolute."""
    options = store_options({"DATA": "here", "config": "/etc/q.toml", "cassandra_timeout": "3", "subscribe": "a"})
    assert options.settings == (("cassandra_timeout", "3"), ("data", str(Path.cwd() / "here")))
    assert (options.config, options.application) == ("/etc/q.toml", None)
    assert store_options({"Consistency.Weak": "delay=9"}).settings == (("consistency.weak", "delay=9"),)
    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, StoreOptions(options.settings, options.config)}) == 1


def test_secrets_go_by_name() -> None:
    """A password is only taken from a named place; one given as a value is refused without being repeated."""
    assert store_options({"cassandra_password": "env:PW"}).settings == (("cassandra_password", "env:PW"),)
    file = store_options({"cassandra_password": "file:pw"}).settings[0][1]
    assert file == f"file:{Path.cwd() / 'pw'}"
    for options in ({"cassandra_password": "hunter2"}, {"store": "cassandra://ann:hunter2@127.0.0.1/queuey"}):
        with pytest.raises(OptionError, match="cassandra_password") as refused:
            store_options(options)
        error: BaseException | None = refused.value
        while error is not None:
            assert "hunter2" not in str(error)
            error = error.__cause__


def test_all_of_a_write() -> None:
    """All options of a write are parsed; Spark's own are ignored where Spark passes them on."""
    given_by = {"topic": "q", "ttl": "60", "lead": "2.5", "rate": "100", "create": "true", "partitions": "4"}
    options = write_options({**given_by, "run": "r"}, streaming=False)
    assert (options.queue, options.ttl, options.run, options.lead) == ("q", 60, "r", 2.5)
    assert (options.rate, options.create, options.partitions) == (100.0, True, 4)
    stream = write_options({"queue": "q", "checkpointLocation": "/x", "queryName": "n"}, streaming=True)
    assert stream.queue == "q"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "a", "topic": "b"}, "different queues"),
        ({"create": "true"}, "create needs queue"),
        ({"queue": "a", "partitions": "2"}, "it needs create=true"),
        ({"ttl": "0"}, "ttl is '0'"),
        ({"lead": "nan"}, "lead is 'nan': it has to be a number from 0.1 to 3600"),
        ({"run": ""}, "run has to be a text of 1 to 200 characters"),
        ({"run": "a\u202eb"}, "run has to be a text of 1 to 200 characters that show"),
        ({"subscribe": "a"}, "subscribe does not apply to a batch write"),
    ],
)
def test_wrong_writes(options: dict[str, str], says: str) -> None:
    """An impossible write is refused in one line that names the option."""
    with pytest.raises(OptionError, match=says):
        write_options(options, streaming=False)
