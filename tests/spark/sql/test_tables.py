"""Options of tables of Spark SQL, and how they travel in the schemas of tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from queuey.spark import tables
from queuey.spark.errors import OptionError
from queuey.spark.sink.arrow_rows import layout_of

OF_SPARK = {"owner": "ann", "provider": "queuey", "is_managed_location": "true"}
"""What Spark says of a table besides its options."""


def of_table(**options: str) -> dict[str, str]:
    """What Spark hands over for a table with these options: each twice, beside what it says itself."""
    return OF_SPARK | options | {f"option.{name}": text for name, text in options.items()}


def created(**options: str) -> StructType:
    """The schema of a table, as the catalogue of Spark keeps it: through JSON."""
    found = tables.declared(of_table(**options))
    assert found is not None
    return StructType.fromJson(tables.table_schema(found).jsonValue())


def test_properties_of_spark_are_no_options() -> None:
    """Of what Spark says of a table only its OPTIONS count, not the properties that Spark or a user gives it."""
    given = of_table(subscribe="orders", startingOffsets="earliest") | {"team": "north"}
    assert tables.declared(given) == {"subscribe": "orders", "startingoffsets": "earliest"}
    assert tables.declared({"subscribe": "orders"}) is None


def test_a_table_reads_what_its_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema of a table brings its options to each read, with paths as they were where it was created."""
    monkeypatch.chdir(tmp_path)
    schema = created(subscribe="orders", data="here", cassandra_password="file:secret")
    assert tables.options_of(schema, tables.READ, {"minPartitions": "3"}) == {
        "subscribe": "orders",
        "data": str(tmp_path / "here"),
        "cassandra_password": f"file:{tmp_path / 'secret'}",
        "minpartitions": "3",
    }
    assert tables.options_of(schema, tables.WRITE, {}) == {}


def test_queues_of_ones_own_replace_all_options_of_a_table() -> None:
    """A read that names its own queues takes nothing from the schema, which may come from anywhere."""
    schema = created(subscribe="orders", data="/somewhere", startingTimestamp="5")
    assert tables.options_of(schema, tables.READ, {"assign": '{"a":[1]}'}) == {"assign": '{"a":[1]}'}
    schema = created(queue="orders", data="/somewhere")
    assert tables.options_of(schema, tables.WRITE, {"topic": "other"}) == {"topic": "other"}


def test_columns_of_a_table_say_what_they_are() -> None:
    """Every column has a comment, headers are there if asked for, and a table to write to has columns of a write."""
    assert all(field.metadata["comment"] for field in created(subscribe="a", includeHeaders="true"))
    assert "headers" not in created(subscribe="a").names
    schema = created(queue="a")
    assert all(field.metadata["comment"] for field in schema)
    assert layout_of(schema, queue="a").columns == tuple(schema.names)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (OF_SPARK, "A table of queues needs OPTIONS"),
        (of_table(subscribe="a") | {"location": "/x"}, "has no LOCATION"),
        (of_table(subscribe="a", queue="b"), "create one for each"),
        (of_table(queue="a", run="june"), "Option run names one write"),
        (of_table(topic="a", colour="red"), "Unknown option colour"),
        (of_table(subscribe="a", cassandra_password="hunter2"), "cassandra_password is not of the form"),
        (of_table(queue="a", cassandra_password="hunter2"), "cassandra_password is not of the form"),
        (of_table(startingOffsets="earliest"), "exactly one of subscribe"),
    ],
)
def test_what_is_no_table_is_refused(given: dict[str, str], says: str) -> None:
    """When it is created, in a sentence that repeats no secret."""
    with pytest.raises(OptionError, match=says) as refused:
        tables.table_schema(tables.declared(given) or {})
    assert "hunter2" not in str(refused.value)
