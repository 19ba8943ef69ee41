"""Checks of SQL without Spark."""

from __future__ import annotations

import pytest

from queuey.pipeline.options import check_condition, check_query
from queuey.spark.errors import OptionError


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM messages",
        "-- what (is this\nselect ')' AS value FROM `messages` /* ; ' */ ;",
        "WITH some AS (SELECT r'C:\\' AS value FROM messages) SELECT * FROM some",
        "FROM Messages |> WHERE value = 'it\\'s' |> SELECT value;;",
        '(SELECT "a ( b" AS value FROM messages)',
        "SELECT 'it''s' AS value FROM messages",
    ],
)
def test_queries(text: str) -> None:
    """Texts that Spark may understand are accepted."""
    check_query(text, "messages")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("SELEC * FROM messages", "begins with 'SELEC'"),
        ("SELECT * FROM orders", "does not name the view messages"),
        ("SELECT 'messages' AS value", "does not name the view messages"),
        ("SELECT count(* FROM messages", r"\( in 'SELECT count\(\* FROM messages' is never closed"),
        ("SELECT 1) FROM messages", r"\) in .* closes nothing"),
        ("SELECT 'a FROM messages", "' in .* is never closed"),
        ("SELECT 1 /* FROM messages", r"/\* in .* is never closed"),
        ("SELECT 1 FROM messages; SELECT 2 FROM messages", "more after ;"),
    ],
)
def test_what_is_none(text: str, says: str) -> None:
    """Texts that certainly fail are refused at once, with the place."""
    with pytest.raises(OptionError, match=says):
        check_query(text, "messages")


def test_conditions() -> None:
    """A condition is one expression: it cannot end the parentheses around it."""
    check_condition("valueType = 'json' AND (partition = 1 OR false) -- those")
    for text in ("", "partition = 1) OR (true", "'a"):
        with pytest.raises(OptionError):
            check_condition(text)
