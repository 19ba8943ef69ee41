"""Tests of the short form of a task's call."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from queuey.model.task_calls import MAX_ARGUMENTS, MAX_NAME, find_call

JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@given(some.text(min_size=1), some.lists(JSON, max_size=5), some.dictionaries(some.text(), JSON, max_size=5))
def test_a_call_is_short_and_printable(task: str, args: list[object], kwargs: dict[str, object]) -> None:
    """The call of any message is one short line without control characters."""
    call = find_call(msgspec.json.encode({"task": task, "args": args, "kwargs": kwargs}))
    assert call is not None
    assert (0 < len(call.task) <= MAX_NAME, len(call.arguments) <= MAX_ARGUMENTS) == (True, True)
    assert not set(str(call)) & {"\n", "\r", "\t", "\x1b", "\x7f", "\x9b", "\u202e", "\u2028"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"task": "thumb", "args": ["a.jpg", 2], "kwargs": {"size": 4}}', 'thumb("a.jpg", 2, size=4)'),
        ('{"task":"tidy"}', "tidy()"),
        ('{"task":"t","args":["' + 99 * "é" + '"]}', 't("' + 78 * "é" + "…)"),
        ('{"task":"t","args":["\x1b[2J\u202e"]}', None),
        ('{"task":"t","args":["\u202e"]}', 't("\\u202e")'),
        ('{"task":"t","args":[[1,\n2]]}', "t([1,\\n2])"),
        ('{"task":"t","due":"Monday"}', None),
        ('{"task":""}', None),
        ('{"task":"t","args":{}}', None),
        ('["t"]', None),
        ("t()", None),
        (b"\xff", None),
    ],
)
def test_what_calls_a_task(body: str | bytes, text: str | None) -> None:
    """Only a JSON object with a name, and nothing besides arguments, is a call."""
    call = find_call(body)
    assert (None if call is None else str(call)) == text
