"""Options of Spark SQL tables, and how they travel in the schemas of tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from queuey.spark import tables
from queuey.spark.errors import OptionError
from queuey.spark.sink.arrow_rows import read_layout

OF_SPARK = {"owner": "ann", "provider": "queuey", "is_managed_location": "true"}
"""Properties of a table that Spark adds to its options."""


def make_table_properties(**options: str) -> dict[str, str]:
    """Returns Spark's properties of a table with these options: each twice, beside its own."""
    return OF_SPARK | options | {f"option.{name}": text for name, text in options.items()}


def read_schema(**options: str) -> StructType:
    declared = tables.find_table_options(make_table_properties(**options))
    assert declared is not None
    return StructType.fromJson(tables.table_schema(declared).jsonValue())


def test_properties_of_spark_are_no_options() -> None:
    """Of Spark's table properties only the OPTIONS count, not those that Spark or a user adds."""
    properties = make_table_properties(subscribe="orders", startingOffsets="earliest") | {"team": "north"}
    assert tables.find_table_options(properties) == {"subscribe": "orders", "startingoffsets": "earliest"}
    assert tables.find_table_options({"subscribe": "orders"}) is None


def test_a_table_reads_what_its_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's schema brings its options to each read, with paths as they were at its creation."""
    monkeypatch.chdir(tmp_path)
    schema = read_schema(subscribe="orders", data="here", cassandra_password="file:secret")
    assert tables.merge_table_options(schema, tables.READ_OPTIONS_KEY, {"minPartitions": "3"}) == {
        "subscribe": "orders",
        "data": str(tmp_path / "here"),
        "cassandra_password": f"file:{tmp_path / 'secret'}",
        "minpartitions": "3",
    }
    assert tables.merge_table_options(schema, tables.WRITE_OPTIONS_KEY, {}) == {}


def test_queues_of_ones_own_replace_all_options_of_a_table() -> None:
    """A read with its own queues takes nothing from the schema, which may be anyone's."""
    schema = read_schema(subscribe="orders", data="/somewhere", startingTimestamp="5")
    assert tables.merge_table_options(schema, tables.READ_OPTIONS_KEY, {"assign": '{"a":[1]}'}) == {
        "assign": '{"a":[1]}'
    }
    schema = read_schema(queue="orders", data="/somewhere")
    assert tables.merge_table_options(schema, tables.WRITE_OPTIONS_KEY, {"topic": "other"}) == {"topic": "other"}


def test_columns_of_a_table_say_what_they_are() -> None:
    """Every column has a comment, headers are optional, and a table to write to has the columns of a write."""
    assert all(field.metadata["comment"] for field in read_schema(subscribe="a", includeHeaders="true"))
    assert "headers" not in read_schema(subscribe="a").names
    schema = read_schema(queue="a")
    assert all(field.metadata["comment"] for field in schema)
    assert read_layout(schema, queue="a").columns == tuple(schema.names)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (OF_SPARK, "A table of queues needs OPTIONS"),
        (make_table_properties(subscribe="a") | {"location": "/x"}, "cannot have a LOCATION"),
        (make_table_properties(subscribe="a", queue="b"), "create one for each"),
        (make_table_properties(queue="a", run="june"), "Option run names a single write"),
        (make_table_properties(topic="a", colour="red"), "Unknown option colour"),
        (make_table_properties(subscribe="a", cassandra_password="hunter2"), "cassandra_password is not of the form"),
        (make_table_properties(queue="a", cassandra_password="hunter2"), "cassandra_password is not of the form"),
        (make_table_properties(startingOffsets="earliest"), "exactly one of subscribe"),
    ],
)
def test_what_is_no_table_is_refused(given: dict[str, str], says: str) -> None:
    """An invalid table is refused at its creation, with a message that repeats no secret."""
    with pytest.raises(OptionError, match=says) as refused:
        tables.table_schema(tables.find_table_options(given) or {})
    assert "hunter2" not in str(refused.value)
