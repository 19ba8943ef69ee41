"""Mistakes found when a read is planned give one clear message, and no task runs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from queuey.spark import failures
from tests.spark.kept import Kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNREACHABLE = {
    "store": "cassandra://127.0.0.1:1/nowhere",
    "deadline": "2",
    "cassandra_timeout": "1",
    **{f"consistency.{level}": "deadline=1" for level in ("weak", "strong", "very_strong")},
}


@pytest.mark.parametrize(
    ("options", "schema", "says"),
    [
        ({"subscrib": "orders"}, None, "Unknown option subscrib. Did you mean subscribe?"),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"9":-2}}'},
            None,
            "names partition 9 of queue 'orders'",
        ),
        ({"subscribe": "orders,nope"}, None, "application 'acme' has no queue 'nope'"),
        ({"subscribe": "orders", "application": "nobody"}, None, "There is no application 'nobody' in the store."),
        ({"subscribe": "orders", "cassandra_user": "u"}, None, "cassandra_user is for a Cassandra store"),
        ({"subscribe": "orders", **UNREACHABLE}, None, "Cassandra cannot be reached"),
        ({"subscribe": "orders"}, "body BINARY", "A read has no column 'body': it has value, queue, partition, id,"),
    ],
)
def test_mistakes(options: dict[str, str], schema: str | None, says: str, spark: SparkSession, embedded: Kept) -> None:
    """A mistake in a read gives one line at the end of the error, before any task has run."""
    embedded.queue("orders")
    place = {} if "store" in options else embedded.options
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "a mistake")
    reader = spark.read.format("queuey").options(**place | options)
    with pytest.raises(AnalysisException) as refused:
        (reader if schema is None else reader.schema(schema)).load().count()
    failure = failures.explain(refused.value)
    assert failure is not None
    assert says in failure.text
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)


def test_mistakes_show_early(spark: SparkSession, embedded: Kept) -> None:
    """Wrong options are refused when the read is defined, not when it runs."""
    for options in ({}, {"subscribe": "a", "assign": "{}"}, {"subscribe": "a", "cassandra_password": "hunter2"}):
        with pytest.raises(AnalysisException) as refused:
            spark.read.format("queuey").options(**embedded.options, **options).load()
        assert "hunter2" not in str(refused.value)
