"""What a null in a row to be written means, where it is not the same as leaving the column out."""

from __future__ import annotations

from typing import Any

import pytest

from queuey import ids
from queuey.spark.errors import OptionError
from tests.spark.unit.test_arrow_rows import LOW, TICKS, WriteSetup, setup

__all__ = ["setup"]

HEADERS = "array<struct<key:string,value:binary>>"


@pytest.mark.parametrize(
    ("schema", "good", "bad", "text"),
    [
        (f"headers {HEADERS}", None, [{"key": "a", "value": None}], "column headers: the value of header a is null"),
        (f"headers {HEADERS}", [], [{"key": None, "value": b"1"}], "column headers: None is not a header name"),
        (f"headers {HEADERS}", [], [None], "column headers: None is not a header name"),
        ("id string", ids.to_hex((TICKS, LOW)), None, "column id: null"),
    ],
    ids=["value of a header", "name of a header", "header", "id"],
)
def test_nulls_that_are_refused(setup: WriteSetup, schema: str, good: object, bad: object, text: str) -> None:
    """A null where there has to be something is told by its row and column, and nothing of the chunk is written."""
    rows: list[tuple[Any, ...]] = [("a", good), ("b", bad)]
    with pytest.raises(OptionError) as caught:
        setup.write(f"value string, {schema}", rows)
    assert f"Row 2 of this task, {text}" in str(caught.value)
    assert setup.all() == []
