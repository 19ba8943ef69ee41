"""The examples of the page about Spark that concern batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import queuey.spark
from queuey.spark import options as table
from queuey.spark import register
from queuey.spark.errors import OptionError
from queuey.spark.session import session
from tests.pages import blocks, runnable_blocks
from tests.pages import examples as docstring_examples
from tests.replacing import replace
from tests.spark.kept import Kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
POINTED = {
    ".load()": ".options(**place).load()",
    ".save()": ".options(**place).save()",
    "store_options({})": "store_options(place)",
}
"""Calls that go to the user's own store, and their replacements for the test's."""


def test_the_examples_run(spark: SparkSession, embedded: Kept) -> None:
    """The examples of starting, reading and writing run in order, on the given store."""
    embedded.fill(embedded.queue("orders", partitions=2), 20)
    sections = ("Start", "Read", "Write")
    blocks = [
        block for part in sections for block in runnable_blocks("docs/spark.md", below=part, languages={"python"})
    ]
    examples = [block.text for block in blocks]
    assert len(examples) >= 6
    examples += [example.text for thing in (session, register) for example in docstring_examples(thing)]
    names: dict[str, object] = {"place": embedded.options}
    with replace(session, lambda: spark):
        for example in examples:
            for call, pointed in POINTED.items():
                example = example.replace(call, pointed)  # noqa: PLW2901 - the example as it is run
            exec(compile(example, str(PAGE), "exec"), names)


def test_the_mistake_of_the_page() -> None:
    """A wrong option gives the error that the page shows."""
    [shown] = [block.text for block in blocks("docs/spark.md") if block.mark == "output"]
    with pytest.raises(OptionError) as caught:
        table.read_options({"subscrib": "orders"}, streaming=False)
    assert shown == f"{caught.type.__module__}.{caught.type.__qualname__}: {caught.value}\n"


def test_every_option_is_described() -> None:
    """Options that are not settings of the store are in the package's table, those of reads on the page as well."""
    table_text, page = queuey.spark.__doc__ or "", PAGE.read_text()
    for name, option in table._OPTIONS.items():
        reads = {"a batch read", "a streaming read"} & {*option.uses}
        assert not reads or f"`{name}" in page, name
        assert option.uses == ("a streaming write",) or name.startswith("ending") or f"`{name}`" in table_text, name
