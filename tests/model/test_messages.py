"""Tests of the basic types."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids, messages
from queuey.model.ids import Position
from queuey.model.messages import Message, Meta, Offset, OffsetChange, Principal, Queue, QueueSpec, Slice
from tests import strategies

FROZEN = [
    Principal("app:reports"),
    QueueSpec(),
    Queue(application="acme", name="orders", uid=1, qid=1),
    Meta(),
    Slice(partition=1),
    Offset(1, ids.FIRST, 0.0),
    OffsetChange(1, ids.FIRST),
]


@given(strategies.positions(), strategies.bodies())
def test_message_names_itself(position: Position, body: str | bytes) -> None:
    """A message's id, position and timestamp agree."""
    message = Message(*position, partition=1, expires=0, body=body)
    assert message.position == position
    assert ids.parse_position(message.id) == position
    assert ids.timestamp_text(position[0]) == message.timestamp


@pytest.mark.parametrize("noun", FROZEN, ids=lambda noun: type(noun).__name__)
def test_nouns_that_are_shared_cannot_change(noun: msgspec.Struct) -> None:
    """Types that caches and threads share are frozen and hashable."""
    field = noun.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(noun, field, None)
    assert noun == msgspec.structs.replace(noun)
    assert len({noun, msgspec.structs.replace(noun)}) == 1


HEADERS = st.lists(
    st.tuples(strategies.text_bodies(20), st.text(st.characters(codec="utf-8"), max_size=20)), max_size=16
)


@given(st.none() | strategies.text_bodies(40), HEADERS.map(tuple), st.booleans())
def test_meta_round_trips(content_type: str | None, headers: tuple[tuple[str, str], ...], json: bool) -> None:  # noqa: FBT001 - given by hypothesis
    """Metadata is decoded as it was encoded, order of headers included."""
    meta = Meta(content_type, headers, json)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(meta), type=Meta) == meta
    assert msgspec.json.decode(msgspec.json.encode(meta), type=Meta) == meta


def test_limits_are_those_of_the_original() -> None:
    """The TTL of a message is 3 days by default and never more than 2**25 seconds."""
    assert messages.DEFAULT_TTL == 3 * 24 * 3600
    assert messages.MAX_TTL == 2**25
