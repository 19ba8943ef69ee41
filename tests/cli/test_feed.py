"""From lines to batches of messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.cli.feed import BadLine, Route, number_lines, sort_into_batches

QUEUES = st.sampled_from(["a", "b", "c"])


def value(message: Any) -> Any:  # noqa: ANN401 - any JSON value
    return msgspec.json.decode(message.json)


@given(st.lists(QUEUES, max_size=200), st.integers(1, 20), st.integers(1, 400))
def test_every_line_once_and_in_order(names: list[str], size: int, room: int) -> None:
    """Whatever the sizes, each queue gets exactly its lines in their order, in batches of the size asked for."""
    lines = [(number, msgspec.json.encode({"q": name, "n": number})) for number, name in enumerate(names, 1)]
    got: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for batch in sort_into_batches(lines, Route("{}", queue_field="q"), max_messages=size, max_bytes=room):
        assert 1 <= len(batch.messages) <= size
        got[batch.queue] += [value(message)["n"] for message in batch.messages]
    assert got == {name: [n for n, q in enumerate(names, 1) if q == name] for name in got}


def test_a_feed_is_never_held_as_a_whole() -> None:
    """No more lines are read than a batch needs before it is handed out, however many there are."""
    read = 0

    def endless() -> Iterator[tuple[int, bytes]]:
        nonlocal read
        while True:
            read += 1
            yield read, b"%d" % read

    parts = sort_into_batches(endless(), Route("q"), max_messages=10)
    for count in range(1, 100):
        assert len(next(parts).messages) == 10
        assert read == 10 * count


def test_held_bytes_are_bounded() -> None:
    """Lines for many queues are handed out when they fill the room, not when some queue's batch is full."""
    lines = ((number, b'{"q":%d,"pad":"%s"}' % (number, b"x" * 100)) for number in range(1000))
    first = next(sort_into_batches(lines, Route("{}", queue_field="q"), max_messages=1000, max_bytes=1000))
    assert (first.queue, next(lines)[0]) == ("0", 9)


def test_fields_choose_queue_and_key() -> None:
    """A field may lie deeper, and may be a number or a truth value."""
    route = Route("net-{}", queue_field="p.net", key_field="n", options={"ttl": 5})
    queue, message = route.make_message(b'{"p":{"net":"ak"},"n":7}')
    assert (queue, message.key, message.ttl) == ("net-ak", "7", 5)
    assert Route("q", key_field="n").make_message(b'{"n":true}')[1].key == "true"


@pytest.mark.parametrize("line", [b'{"n":null}', b'{"n":""}', b'{"n":[1]}', b"{}", b"[1]", b"5"])
def test_missing_fields_are_errors(line: bytes) -> None:
    """A line without the field that picks its partition is not sent anywhere."""
    with pytest.raises(BadLine, match="'n'"):
        Route("q", key_field="n").make_message(line)


@pytest.mark.parametrize("line", [b"{", b"plain", b'"\xff"', b"NaN", b"[" * 100_000])
def test_bad_json_names_its_line(line: bytes) -> None:
    """A line that is not JSON stops the feed; all lines before it have been yielded."""
    parts = sort_into_batches([(1, b"1"), (2, b"2"), (3, line)], Route("q"))
    assert [value(message) for message in next(parts).messages] == [1, 2]
    with pytest.raises(BadLine, match=r"^line 3: it is not JSON"):
        next(parts)


def test_raw_lines_are_texts_or_bytes() -> None:
    """With ``raw`` a line is its text; a line that is not UTF-8 is its bytes."""
    route = Route("q", raw=True)
    assert [route.make_message(line)[1].body for line in (b"{", b"\xff")] == ["{", b"\xff"]


def test_lines_are_numbered_as_in_the_file() -> None:
    """Skipped lines keep their numbers, so that an error can be found with an editor."""
    assert list(number_lines([b"a\n", b"\n", b"b\r\n", b"c"], skip=1)) == [(2, b""), (3, b"b"), (4, b"c")]


def test_lines_that_are_no_messages() -> None:
    """White space is a text, but not a JSON value; an empty line is neither."""
    lines = [b"", b" ", b"\t", b"x"]
    assert [Route("q").is_blank(line) for line in lines] == [True, True, True, False]
    assert [Route("q", raw=True).is_blank(line) for line in lines] == [True, False, False, False]
