"""Ids, their order, and the text forms they are read from."""

from __future__ import annotations

import re
import uuid
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import Position
from tests import strategies


def reference_key(value: uuid.UUID) -> tuple[int, list[int]]:
    """Cassandra's order of time UUIDs from its definition: the time, then each low byte as a signed one."""
    signed = [byte - 256 if byte > 127 else byte for byte in value.bytes[8:]]
    return value.time, signed


@given(strategies.neighbourhoods())
def test_positions_have_the_order_of_time_uuids(pair: tuple[Position, Position]) -> None:
    """Two positions compare as Cassandra's TimeUUIDType compares their ids."""
    first, second = pair
    left_key, right_key = (reference_key(uuid.UUID(hex=ids.to_hex(x))) for x in pair)
    assert (first < second) == (left_key < right_key)
    assert (first == second) == (left_key == right_key)


@given(strategies.positions())
def test_hex_round_trip(position: Position) -> None:
    """A position is converted to its id and back; an id is 32 lower-case hex digits."""
    text = ids.to_hex(position)
    assert re.fullmatch("[0-9a-f]{32}", text)
    assert ids.parse_position(text) == position


@given(strategies.time_uuids())
def test_uuid_module_agrees(value: uuid.UUID) -> None:
    """Time and text of an id are the same as in Python's uuid module."""
    position = ids.parse_id(value.hex)
    again = uuid.UUID(hex=ids.to_hex(position))
    assert again == value
    assert again.time == position[0]
    assert again.version == 1
    assert ids.last_digits(position[0] >> 32, position[1]).decode() == value.hex[8:]


@given(strategies.time_uuids())
def test_forms_of_an_id(value: uuid.UUID) -> None:
    """Upper case and dashes change nothing."""
    expected = ids.parse_id(value.hex)
    forms = [value.hex.upper(), str(value), str(value).upper()]
    assert {ids.parse_id(form) for form in forms} == {expected}
    assert {ids.parse_position(form) for form in forms} == {expected}


@given(st.uuids())
def test_position_of_any_uuid(value: uuid.UUID) -> None:
    """A position can be read from a UUID of any version: the time field, and all eight low bytes."""
    ticks, low = ids.parse_position(value.hex)
    assert ticks == value.time
    assert ids.to_hex((ticks, low))[16:] == value.hex[16:]


GOOD = "0123456789ab1def8123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        *("", GOOD[:-1], GOOD + "0", GOOD[:-1] + "g", GOOD + "\n", "0x" + GOOD[2:], "+" + GOOD[1:], "{" + GOOD + "}"),
        *(GOOD[:-1] + "\u0663", GOOD[:-1] + "\uff11", "urn:uuid:" + GOOD, "-" * 36, "1:" + GOOD),
    ],
)
def test_rejected_positions(text: str) -> None:
    """Anything but 32 hex digits, dashed or not, is neither an id nor a position."""
    with pytest.raises(ValueError, match="not a message id"):
        ids.parse_position(text)
    with pytest.raises(ValueError, match="not a message id"):
        ids.parse_id(text)


@pytest.mark.parametrize("version", "023456789abcdef")
def test_message_ids_are_version_one(version: str) -> None:
    """Only version 1 is a message's id."""
    with pytest.raises(ValueError, match="version 1"):
        ids.parse_id(GOOD[:12] + version + GOOD[13:])


@pytest.mark.parametrize("variant", "01234567cdefCDEF")
def test_message_ids_are_of_the_rfc_variant(variant: str) -> None:
    """Only the RFC's variant is a message's id."""
    with pytest.raises(ValueError, match="version 1"):
        ids.parse_id(GOOD[:16] + variant + GOOD[17:])


@given(strategies.positions())
def test_following_and_preceding_are_neighbours(position: Position) -> None:
    """The neighbours are one step away on either side, and missing beyond the ends."""
    after, before = ids.following(position), ids.preceding(position)
    assert number(after) == min(number(position) + 1, number(ids.LAST))
    assert number(before) == max(number(position) - 1, number(ids.FIRST))
    assert after >= position >= before


def number(position: Position) -> int:
    ticks, low = position
    return (ticks << 64) + low - ids.LOW_MIN


@given(st.integers(0, 99_999_999_999), st.integers(0, 9_999_999))
def test_instants_are_exact(seconds: int, fraction: int) -> None:
    """Seven decimals are read without losing a tick, and written back the same."""
    text = f"{seconds}.{fraction:07d}"
    ticks = ids.parse_instant(text)
    assert ticks == seconds * 10_000_000 + fraction + ids.EPOCH_TICKS
    assert ids.timestamp_text(ticks) == text


@given(st.integers(0, 99_999_999_999), st.text("0123456789", min_size=1, max_size=20))
def test_digits_beyond_the_seventh_are_cut(seconds: int, decimals: str) -> None:
    """Missing decimals count as zeros; digits beyond the seventh are cut and never rounded."""
    ticks = ids.parse_instant(f"{seconds}.{decimals}")
    assert ticks == int(Decimal(f"{seconds}.{decimals}") * 10_000_000) + ids.EPOCH_TICKS


@given(st.integers(0, 999_999_999_999))
def test_whole_seconds(seconds: int) -> None:
    """An instant without decimals is that second, or the last existing tick."""
    assert ids.parse_instant(str(seconds)) == min(seconds * 10_000_000 + ids.EPOCH_TICKS, ids.TICKS_MAX)


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "+5", "1e9", ".5", "1.2.3", "1 ", "1\n", "1_000", "nan"),
        *("1,5", "1:2", "\u0661", "1.\u0662", "9" * 13, "1." + "9" * 21),
    ],
)
def test_rejected_instants(text: str) -> None:
    """Signs, exponents, spaces and digits of other scripts are refused."""
    assert ids.parse_instant(text) is None


@given(st.integers(0, ids.TICKS_MAX))
def test_timestamp_text_is_exact(ticks: int) -> None:
    """The text has seven decimals and is the exact time since 1970, also before 1970."""
    text = ids.timestamp_text(ticks)
    assert re.fullmatch(r"-?[0-9]+\.[0-9]{7}", text)
    assert Decimal(text) * 10_000_000 + ids.EPOCH_TICKS == ticks


@given(st.floats(0, 4_000_000_000))
def test_seconds_and_ticks(seconds: float) -> None:
    """A conversion to ticks and back keeps an instant within the precision of a float."""
    assert ids.ticks_to_seconds(ids.seconds_to_ticks(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_random_low_makes_valid_ids() -> None:
    """Each process's low part has the RFC's variant, a multicast node, and is different each time."""
    lows = {ids.random_low() for _ in range(200)}
    assert len(lows) == 200
    for low in lows:
        value = uuid.UUID(hex=ids.to_hex((ids.now_ticks(), low)))
        assert value.variant == uuid.RFC_4122
        assert value.version == 1
        assert value.node >> 40 & 1 == 1
        assert ids.parse_id(value.hex)[1] == low
