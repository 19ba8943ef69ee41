"""Parses the options of a read or a write: texts in, frozen structs out. Pure."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from queuey.model.messages import MAX_TTL, is_readable
from queuey.settings import SecretName, Setting, is_of_cassandra, table
from queuey.spark.errors import OptionError
from queuey.spark.start_and_end import (
    EARLIEST,
    LATEST,
    Bound,
    Bounds,
    parse_object,
    parse_partition_numbers,
    read_bounds,
)

DEFAULT_LEAD = 10.0
"""Default lead of reserved ids over the clock, in seconds."""
MAX_LEAD = 3600.0
MAX_RATE = 1e9
MAX_NAME = 200

_STORE_SETTINGS = frozenset({"store", "data", "sync", "deadline", "readers", "default_ttl", "max_body"})
"""Settings of stores and messages that are also options, in addition to all settings for Cassandra."""
SELECTION_OPTIONS = ("subscribe", "subscribePattern", "assign")
"""Options that select queues; a read needs exactly one of them."""
_KAFKA_OPTIONS = {
    "kafka.bootstrap.servers": "store",
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "minoffsetspertrigger": "maxOffsetsPerTrigger",
    "maxtriggerdelay": "maxOffsetsPerTrigger",
    "startingoffsetsbytimestampstrategy": "startingOffsetsByTimestamp",
    "kafkaconsumer.polltimeoutms": "cassandra_timeout",
    "fetchoffset.numretries": "deadline",
    "fetchoffset.retryintervalms": "deadline",
}
"""Option of Spark's Kafka source, in lower case, that is not supported here -> the nearest option."""
_SWITCHES = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


class StoreOptions(msgspec.Struct, frozen=True):
    """A store and an application in it. Picklable and hashable; holds names of secrets, never secrets.

    Attributes:
        settings: Pairs of a setting's name and its text, sorted.
        config: A TOML file with further settings, on every machine.
        application: The application that owns the queues; the store's only one if None.
    """

    settings: tuple[tuple[str, str], ...] = ()
    config: str | None = None
    application: str | None = None


class Subscribe(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


class Pattern(msgspec.Struct, frozen=True):
    regex: str


class Assign(msgspec.Struct, frozen=True):
    """Some partitions of some queues: pairs of a queue's name and its partitions, ascending."""

    partitions: tuple[tuple[str, tuple[int, ...]], ...]


Selection = Subscribe | Pattern | Assign


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a read.

    Attributes:
        starting: Where to start in each partition; for a stream, only at its first start.
        ending: Where to end in each partition; for a stream always ``LATEST``.
        max_offsets: Max messages in a micro-batch.
        min_partitions: Approximate min number of tasks.
        max_records: Approximate max messages in a task.
        headers: Add the column ``headers``.
        group: Record progress as this consumer group's offsets.
    """

    store: StoreOptions
    selection: Selection
    starting: Bounds
    ending: Bounds
    fail_on_data_loss: bool = True
    max_offsets: int | None = None
    min_partitions: int | None = None
    max_records: int | None = None
    headers: bool = False
    group: str | None = None


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a write.

    Attributes:
        queue: The target of all rows; if None, the column ``queue`` of each row names it.
        ttl: TTL in seconds of rows without their own; the queue's TTL if None.
        run: Name of a batch write; repeated writes with one name write each row once.
        lead: Seconds by which ids are reserved ahead of the clock.
        rate: Max messages a second over all tasks; 0 means no limit.
        create: Create the queue if it does not exist.
        partitions: Number of partitions of a created queue; one if None.
    """

    store: StoreOptions
    queue: str | None = None
    ttl: int | None = None
    run: str | None = None
    lead: float = DEFAULT_LEAD
    rate: float = 0.0
    create: bool = False
    partitions: int | None = None


def _parse_switch(name: str, text: str) -> bool:
    value = _SWITCHES.get(text.strip().lower())
    if value is None:
        raise OptionError(f"Option {name} is {text!r}: it has to be true or false.")
    return value


def _parse_positive_integer(name: str, text: str, *, maximum: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1 or (maximum is not None and number > maximum):
        limits = "from 1 on" if maximum is None else f"from 1 to {maximum}"
        raise OptionError(f"Option {name} is {text!r}: it has to be a whole number {limits}.")
    return number


def _parse_real(name: str, text: str, *, minimum: float, maximum: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not minimum <= number <= maximum:
        raise OptionError(f"Option {name} is {text!r}: it has to be a number from {minimum:g} to {maximum:g}.")
    return number


def _parse_name(name: str, text: str) -> str:
    if not 0 < len(text) <= MAX_NAME or not is_readable(text):
        raise OptionError(f"Option {name} has to be a text of 1 to {MAX_NAME} characters that show.")
    return text


_BATCH_READ, _STREAM_READ = "a batch read", "a streaming read"
_BATCH_WRITE, _STREAM_WRITE = "a batch write", "a streaming write"
_READ = (_BATCH_READ, _STREAM_READ)
_WRITE = (_BATCH_WRITE, _STREAM_WRITE)
_EVERYWHERE = (*_READ, *_WRITE)


class _Option(msgspec.Struct, frozen=True):
    """Description of an option.

    Attributes:
        uses: The kinds of reads and writes that accept it.
        field: Field of :class:`SourceOptions` or :class:`SinkOptions`; empty if it is parsed together with others.
        parse: Returns the field's value for the option's name and text.
    """

    uses: tuple[str, ...]
    field: str = ""
    parse: Callable[[str, str], object] | None = None


_OPTIONS = {
    "config": _Option(_EVERYWHERE),
    "application": _Option(_EVERYWHERE),
    "subscribe": _Option(_READ),
    "subscribePattern": _Option(_READ),
    "assign": _Option(_READ),
    "startingOffsets": _Option(_READ),
    "startingTimestamp": _Option(_READ),
    "startingOffsetsByTimestamp": _Option(_READ),
    "endingOffsets": _Option((_BATCH_READ,)),
    "endingTimestamp": _Option((_BATCH_READ,)),
    "endingOffsetsByTimestamp": _Option((_BATCH_READ,)),
    "failOnDataLoss": _Option(_READ, "fail_on_data_loss", _parse_switch),
    "minPartitions": _Option(_READ, "min_partitions", partial(_parse_positive_integer, maximum=100_000)),
    "maxRecordsPerPartition": _Option(_READ, "max_records", _parse_positive_integer),
    "includeHeaders": _Option(_READ, "headers", _parse_switch),
    "maxOffsetsPerTrigger": _Option((_STREAM_READ,), "max_offsets", _parse_positive_integer),
    "group": _Option((_STREAM_READ,), "group", _parse_name),
    "queue": _Option(_WRITE),
    "topic": _Option(_WRITE),
    "ttl": _Option(_WRITE, "ttl", partial(_parse_positive_integer, maximum=MAX_TTL)),
    "lead": _Option(_WRITE, "lead", partial(_parse_real, minimum=0.1, maximum=MAX_LEAD)),
    "rate": _Option(_WRITE, "rate", partial(_parse_real, minimum=0.0, maximum=MAX_RATE)),
    "create": _Option(_WRITE, "create", _parse_switch),
    "partitions": _Option(_WRITE, "partitions", _parse_positive_integer),
    "run": _Option((_BATCH_WRITE,), "run", _parse_name),
    # Options of Spark itself for a streaming write, which it passes on.
    "checkpointLocation": _Option((_STREAM_WRITE,)),
    "queryName": _Option((_STREAM_WRITE,)),
}
"""All options except the settings of a store, which all reads and writes accept."""


def read_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parses the options of a read.

    Raises:
        OptionError: An option is missing or not valid, or a batch read starts at latest or ends at earliest.
    """
    canonical = _check_options(options, _STREAM_READ if streaming else _BATCH_READ)
    starting = read_bounds(canonical, "starting", LATEST if streaming else EARLIEST)
    ending = read_bounds(canonical, "ending", LATEST)
    if not streaming:
        _refuse_bound(starting, LATEST, "A batch read cannot start at latest")
        _refuse_bound(ending, EARLIEST, "A read cannot end at earliest")
    return SourceOptions(
        store=store_options(canonical),
        selection=_parse_selection(canonical),
        starting=starting,
        ending=ending,
        **_parse_fields(canonical),
    )


def write_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parses the options of a write.

    Raises:
        OptionError: An option is unknown or not valid, needs a missing one, or contradicts another.
    """
    canonical = _check_options(options, _STREAM_WRITE if streaming else _BATCH_WRITE)
    queue = canonical.get("queue", canonical.get("topic"))
    if canonical.get("topic", queue) != queue:
        raise OptionError("Options queue and topic name different queues; one of them is enough.")
    if queue == "":
        raise OptionError("Option queue is empty.")
    parsed = SinkOptions(store=store_options(canonical), queue=queue, **_parse_fields(canonical))
    if parsed.create and queue is None:
        raise OptionError("Option create needs queue: which queue is to be created.")
    if parsed.partitions is not None and not parsed.create:
        raise OptionError("Option partitions is for a queue that is created: it needs create=true.")
    return parsed


def store_options(options: Mapping[str, str]) -> StoreOptions:
    """Parses the options of the store; ignores others.

    Makes relative paths absolute on the driver, because executors have other working directories.

    Raises:
        OptionError: A secret is given instead of its name. The message does not contain it.
    """
    canonical = _canonicalize(options)
    settings = {
        name: _normalize_setting(line, canonical[name]) for name, line in _store_settings().items() if name in canonical
    }
    application, config = canonical.get("application"), canonical.get("config")
    if application == "":
        raise OptionError("Option application is empty.")
    return StoreOptions(tuple(sorted(settings.items())), None if config is None else _absolute(config), application)


def check_read(options: Mapping[str, str]) -> bool:
    """Checks names, selection, store and ``includeHeaders`` of a read that may be a batch or a stream.

    Returns:
        True if the read has the column ``headers``.

    Raises:
        OptionError: One of these is missing or not valid. Other values are not checked.
    """
    canonical = _check_options(options, *_READ)
    _parse_selection(canonical)
    store_options(canonical)
    return "includeHeaders" in canonical and _parse_switch("includeHeaders", canonical["includeHeaders"])


def make_lasting_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns options in a form to store: with canonical names and absolute paths.

    Raises:
        OptionError: A secret is given instead of its name. The message does not contain it.
    """
    store = store_options(options)
    return _canonicalize(options) | dict(store.settings) | ({} if store.config is None else {"config": store.config})


def check_names(options: Mapping[str, str]) -> None:
    """Checks the names of options; case does not matter.

    Raises:
        OptionError: An option is unknown. The message suggests the nearest known one.
    """
    for name in options:
        _require_known_name(name)


def _check_options(options: Mapping[str, str], *uses: str) -> dict[str, str]:
    check_names(options)
    canonical = _canonicalize(options)
    for name in canonical:
        if name in _OPTIONS and set(uses).isdisjoint(_OPTIONS[name].uses):
            raise OptionError(f"Option {name} does not apply to {uses[0] if len(uses) == 1 else 'a read'}.")
    return canonical


def _parse_fields(options: Mapping[str, str]) -> dict[str, Any]:
    return {
        line.field: line.parse(name, options[name]) for name, line in _OPTIONS.items() if line.parse and name in options
    }


def _canonicalize(options: Mapping[str, str]) -> dict[str, str]:
    return {_canonical_names().get(name.lower(), name): text for name, text in options.items()}


def _require_known_name(name: str) -> None:
    lower = name.lower()
    if lower in {"path", "paths"}:
        raise OptionError("Queues have no path: use option subscribe to read, option queue to write.")
    if lower in _canonical_names():
        return
    if lower in _KAFKA_OPTIONS or lower.startswith("kafka."):
        near = _KAFKA_OPTIONS.get(lower) or _nearest_name(lower.removeprefix("kafka.")) or "store"
        raise OptionError(f"Option {name} of Kafka is not supported; the nearest option is {near}.")
    close = _nearest_name(lower)
    raise OptionError(f"Unknown option {name}.{f' Did you mean {close}?' if close else ''}")


def _nearest_name(lower: str) -> str | None:
    close = difflib.get_close_matches(lower, _canonical_names(), n=1)
    return _canonical_names()[close[0]] if close else None


@cache
def _store_settings() -> dict[str, Setting]:
    return {line.name: line for line in table() if line.name in _STORE_SETTINGS or is_of_cassandra(line.name)}


@cache
def _canonical_names() -> dict[str, str]:
    return {name.lower(): name for name in (*_OPTIONS, *_store_settings())}


def _normalize_setting(setting: Setting, text: str) -> str:
    if setting.type == "path":
        return _absolute(text)
    if setting.name == "store" and "@" in text:
        raise OptionError("Option store contains a user: use options cassandra_user and cassandra_password.")
    if setting.name == "cassandra_password":
        try:
            return str(SecretName.parse(text, Path.cwd()))
        except ValueError as error:
            raise OptionError(f"Option {setting.name} is not of the form env:NAME or file:PATH: {error}.") from None
    return text


def _absolute(text: str) -> str:
    return str(Path.cwd() / Path(text).expanduser())


def _parse_selection(options: Mapping[str, str]) -> Selection:
    chosen = [name for name in SELECTION_OPTIONS if name in options]
    if len(chosen) != 1:
        excess = f", not {' and '.join(chosen)}" if chosen else ""
        raise OptionError(f"A read needs exactly one of subscribe, subscribePattern and assign{excess}.")
    [name] = chosen
    text = options[name]
    if name == "assign":
        return _parse_assign(text)
    if name == "subscribePattern":
        return _parse_pattern(text)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise OptionError("Option subscribe names no queue.")
    return Subscribe(names)


def _parse_pattern(text: str) -> Pattern:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"Option subscribePattern is not a regular expression: {error}.") from error
    return Pattern(text)


def _parse_assign(text: str) -> Assign:
    shape = '{"queue":[1,2]}'
    assigned = []
    for queue, partitions in parse_object("assign", text, shape).items():
        if not isinstance(partitions, list) or not partitions:
            raise OptionError(f"Option assign is not of the form {shape}.")
        numbers = {number for part in partitions for number in parse_partition_numbers("assign", str(part))}
        assigned.append((queue, tuple(sorted(numbers))))
    return Assign(tuple(assigned))


def _refuse_bound(parsed: Bounds, bound: Bound, why: str) -> None:
    if parsed.everywhere == bound or any(bound in partitions.values() for partitions in parsed.each.values()):
        raise OptionError(f"{why}, as option {parsed.option} says.")
