"""Tests of receipts as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.claims.rules.receipts import ClaimReceipt, parse_receipt
from queuey.model import ids
from queuey.model.partitions import MAX_PARTITIONS

ID = "c26ee9a01dd211b2a1b0d6b7c2ea5c4a"


@given(
    st.integers(1, MAX_PARTITIONS),
    st.integers(0, ids.TICKS_MAX),
    st.integers(0, (1 << 62) - 1),
    st.integers(0, 10**18 - 1),
)
def test_a_receipt_survives_its_text(partition: int, ticks: int, tail: int, number: int) -> None:
    """A receipt is parsed from its text as it was formatted."""
    low = ids.parse_position(f"{'0' * 16}{tail | 1 << 63:016x}")[1]
    receipt = ClaimReceipt(partition, ticks, low, number)
    assert parse_receipt(str(receipt)) == receipt
    assert receipt.position == (ticks, low)


@pytest.mark.parametrize(
    "text",
    [
        *("", f"1-{ID}", f"0-{ID}-1", f"1-{ID}-01", f"1-{ID}-{'9' * 19}", f"1-{ID[:-1]}-1", f"1-{ID.upper()}-1"),
        *(f"1-{ID}-1\n", f"1-{ID}-\u0661", f"1000-{ID}-1", f"1-{ID.replace('11b2', '41b2')}-1"),
    ],
)
def test_text_that_is_not_a_receipt_is_refused(text: str) -> None:
    """Text that is not a receipt is refused."""
    with pytest.raises(ValueError, match="is not a"):
        parse_receipt(text)
