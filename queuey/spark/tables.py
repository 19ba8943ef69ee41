"""Tables of Spark SQL. The schema of a table holds the options of ``CREATE TABLE … USING queuey OPTIONS (…)``.

Spark requests a schema from a Python source when a table is created, keeps the schema in its catalogue, and passes it
at each use of the table, but without the table's options. So the schema has the options as metadata of its first
column. Options hold only names of secrets, so no secret gets into a catalogue.

A table is either for reading or for writing, and its metadata say which. A frame that was read from a table keeps the
metadata of its columns, but must not be written back to its source.
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

READ_OPTIONS_KEY = "queuey.read"
WRITE_OPTIONS_KEY = "queuey.write"
"""Metadata keys for the options of a table for reading, and of a table for writing."""

_OPTION_PREFIX = "option."
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
    # Spark keeps the table's metadata only when it converts rows. No frame has this type, so it always converts.
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


def find_table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the options of a table that is being created, or None if the options are for a read or a write.

    For a table Spark passes its properties, including its own (``owner``, ``provider``, …).

    Raises:
        OptionError: The table has a location, or no options.
    """
    properties = {name.lower(): text for name, text in options.items()}
    if properties.get("provider", "").lower() != "queuey":
        return None
    if "path" in properties or "location" in properties:
        raise OptionError("A table of queues cannot have a LOCATION: use OPTIONS.")
    table_options = {
        name.removeprefix(_OPTION_PREFIX): text for name, text in properties.items() if name.startswith(_OPTION_PREFIX)
    }
    if not table_options:
        raise OptionError(
            "A table of queues needs OPTIONS: subscribe, subscribePattern or assign to read, queue to write."
        )
    return table_options


def table_schema(options: Mapping[str, str]) -> StructType:
    """Returns the columns of a table, with its options as metadata.

    Raises:
        OptionError: The options are not valid, are for both reading and writing, or name a ``run``.
    """
    if not {"queue", "topic"}.isdisjoint(options):
        if any(name.lower() in options for name in table.SELECTION_OPTIONS):
            raise OptionError(
                "A table of queues is for reading (subscribe, …) or writing (queue): create one for each."
            )
        if "run" in options:
            raise OptionError("Option run names a single write: set it at the write, not in a table.")
        table.write_options(options, streaming=False)
        kind = WRITE_OPTIONS_KEY
        fields = [_make_field(name, kind_of, comment) for name, (kind_of, comment) in _WRITE_COLUMNS.items()]
    else:
        schema = columns.read_schema(headers=table.check_read(options))
        kind = READ_OPTIONS_KEY
        fields = [
            _make_field(field.name, field.dataType, _READ_COMMENTS[field.name], nullable=field.nullable)
            for field in schema
        ]
    fields[0].metadata[kind] = table.make_lasting_options(options)
    return StructType(fields)


def merge_table_options(schema: StructType, kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a read or a write by lower-case name, merged with the options of its table.

    Its own options override the table's. If they name queues, the table's options are ignored.

    Args:
        schema: The schema that Spark passes.
        kind: ``READ_OPTIONS_KEY`` or ``WRITE_OPTIONS_KEY``.
        options: The options of the read or write itself.
    """
    own = {name.lower(): text for name, text in options.items()}
    kept: Mapping[str, str] = next((field.metadata[kind] for field in schema if kind in field.metadata), {})
    chosen = {"queue", "topic", *(name.lower() for name in table.SELECTION_OPTIONS)}
    if not chosen.isdisjoint(own):
        return own
    return {name.lower(): text for name, text in kept.items()} | own


def _make_field(name: str, kind: DataType, comment: str, *, nullable: bool = True) -> StructField:
    return StructField(name, kind, nullable=nullable, metadata={"comment": comment})
