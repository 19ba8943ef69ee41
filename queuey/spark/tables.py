"""Tables of Spark SQL: what ``CREATE TABLE … USING queuey OPTIONS (…)`` says travels in the schema of the table.

Spark asks a source in Python for a schema when a table is created, keeps that schema in its catalogue, and hands it
over at each use of the table; the table's options it does not hand over. So the schema carries them, as metadata of its
first column. Secrets are in options by name only, so they are in no catalogue either.

A table is for reading or for writing, and its metadata say which: a frame that was read from a table keeps the metadata
of its columns, and must not be written to where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from queuey.spark import options as table
from queuey.spark.errors import OptionError
from queuey.spark.source import columns

READ = "queuey.read"
WRITE = "queuey.write"
"""Names of the metadata that hold the options of a table, by what the table is for."""

_OPTION = "option."
"""Prefix of a table's options among its properties."""
_READ_COMMENTS = {
    "value": "the body; text is UTF-8",
    "queue": "the name of the queue",
    "partition": "from 1",
    "id": "32 hex digits, unique in its partition; their order is not that of messages",
    "position": "32 hex digits in the order of messages in a partition",
    "timestamp": "the time of the id",
    "expires": "when the message ends",
    "valueType": "text, bytes or json",
    "contentType": "what the producer said; may be null",
    "headers": "what the producer sent along; may be null",
}
_WRITE_COLUMNS: dict[str, tuple[DataType, str]] = {
    # A frame has no such type, so Spark always converts rows to those of the table, and keeps its metadata only then.
    "value": (VarcharType((1 << 31) - 1), "the body, never null nor empty"),
    "key": (StringType(), "rows of one key go to one partition"),
    "partition": (IntegerType(), "from 1; null: by key"),
    "ttl": (IntegerType(), "seconds; null: the option, else the queue's"),
    "valueType": (StringType(), "text or json; null: text"),
    "contentType": (StringType(), "may be null"),
    "headers": (
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        "may be null",
    ),
}


def declared(options: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the options of a table that is being created; None: these are options of a read or a write.

    For a table Spark gives its properties, of which some are Spark's own (``owner``, ``provider``, …).

    Raises:
        OptionError: The table has a place in a file system, or no options.
    """
    given = {name.lower(): text for name, text in options.items()}
    if given.get("provider", "").lower() != "queuey":
        return None
    if "path" in given or "location" in given:
        raise OptionError("A table of queues has no LOCATION: its OPTIONS say what it is.")
    found = {name.removeprefix(_OPTION): text for name, text in given.items() if name.startswith(_OPTION)}
    if not found:
        raise OptionError(
            "A table of queues needs OPTIONS: subscribe, subscribePattern or assign for one that is read, "
            "queue for one that is written to."
        )
    return found


def table_schema(options: Mapping[str, str]) -> StructType:
    """Returns the columns of a table, which carry its options.

    Raises:
        OptionError: The options cannot be used, or are for reading and for writing.
    """
    if not {"queue", "topic"}.isdisjoint(options):
        if any(name.lower() in options for name in table.SELECTIONS):
            raise OptionError("A table of queues is read (subscribe, …) or written to (queue): create one for each.")
        if "run" in options:
            raise OptionError("Option run names one write, and a table has many: give it with the write.")
        table.write_options(options, streaming=False)
        kind = WRITE
        fields = [_field(name, kind_of, comment) for name, (kind_of, comment) in _WRITE_COLUMNS.items()]
    else:
        found = columns.read_schema(headers=table.check_read(options))
        kind = READ
        fields = [_field(one.name, one.dataType, _READ_COMMENTS[one.name], nullable=one.nullable) for one in found]
    fields[0].metadata[kind] = table.lasting(options)
    return StructType(fields)


def options_of(schema: StructType, kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a read or a write: those of its table, if it is of one, and its own.

    Its own go before the table's. If they name queues, the table's are left out altogether.

    Args:
        schema: What Spark hands over.
        kind: ``READ`` or ``WRITE``.
        options: Those of the read or write itself.
    """
    own = {name.lower(): text for name, text in options.items()}
    kept: Mapping[str, str] = next((field.metadata[kind] for field in schema if kind in field.metadata), {})
    chosen = {"queue", "topic", *(name.lower() for name in table.SELECTIONS)}
    if not chosen.isdisjoint(own):
        return own
    return {name.lower(): text for name, text in kept.items()} | own


def _field(name: str, kind: DataType, comment: str, *, nullable: bool = True) -> StructField:
    return StructField(name, kind, nullable=nullable, metadata={"comment": comment})
