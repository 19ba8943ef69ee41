"""Bodies and their metadata are read as they were written."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from queuey.model.messages import Meta
from queuey.storage import Store, bridge
from tests import strategies
from tests.contract.samples import append_bodies, bodies, make_queue, messages_in_partition, new_message

EXAMPLES: dict[str, str | bytes] = {
    "NUL": "a\0b",
    "only NUL": "\0",
    "emoji": "\U0001f600\U0001f1e9\U0001f1ea",
    "combining": "e\u0301 is not \u00e9",
    "line ends": "\r\n\n\r",
    "empty lines": "\n\n\n",
    "spaces": " \t ",
    "byte order mark": "\ufeffx",
    "last code points": "\uffff\U0010ffff",
    "digits": "12345678901234567890",
    "float text": "1e5",
    "NULL": "NULL",
    "blob literal": "x'00ff'",
    "zero byte": b"\0",
    "invalid UTF-8": b"\xff\xfe\x80\xc0",
    "half a character": "\u20ac".encode()[:2],
    "bytes that are text": b"hello",
    "all bytes": bytes(range(256)),
}


def test_examples(store: Store, other: Store) -> None:
    """Each body has the same type and content in every way it is stored and read."""
    for what, body in EXAMPLES.items():
        queue = make_queue(store, what)
        (position,) = append_bodies(store, queue, body)
        bridge.run(store.messages.put(queue, [(1, (1, 1))], new_message(body)))
        for one in (store, other):
            for message in (
                *messages_in_partition(one, queue),
                *bridge.run(one.messages.fetch(queue, [(1, position), (1, (1, 1))])),
            ):
                assert message.body == body, what
                assert type(message.body) is type(body), what


def test_large_bodies(store: Store) -> None:
    """Bodies up to 256 KiB are read completely, text and bytes."""
    queue = make_queue(store)
    said: list[str | bytes] = []
    for size in (1, 4095, 4096, 4097, 65_535, 65_536, 256 * 1024):
        said += ["\u20ac" * (size // 3) + "x" * (size % 3), os.urandom(size)]
        append_bodies(store, queue, *said[-2:])
    assert bodies(messages_in_partition(store, queue)) == said


METAS = st.builds(
    Meta,
    st.none() | strategies.text_bodies(60),
    st.lists(
        st.tuples(strategies.text_bodies(20), st.text(st.characters(codec="utf-8"), max_size=60)), max_size=16
    ).map(tuple),
    st.booleans(),
)


@strategies.ON_STORES
@given(st.lists(st.none() | METAS, min_size=1, max_size=8))
def test_any_meta(store: Store, metas: list[Meta | None]) -> None:
    """Content type, ordered headers and the JSON flag are kept; no metadata equals empty metadata."""
    queue = make_queue(store)
    positions = bridge.run(store.messages.append(queue, [new_message("x", meta=meta) for meta in metas]))
    for messages in (
        messages_in_partition(store, queue),
        bridge.run(store.messages.fetch(queue, [(1, position) for position in positions])),
    ):
        assert [message.meta or Meta() for message in messages] == [meta or Meta() for meta in metas]
