"""Tests of receipts as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.claims.rules.receipts import (
    ClaimReceipt,
    InvalidReceipt,
    ReceiptOfAnotherQueue,
    format_receipt,
    parse_receipt,
)
from queuey.model import ids
from queuey.model.messages import Queue
from queuey.model.partitions import MAX_PARTITIONS

ID = "c26ee9a01dd211b2a1b0d6b7c2ea5c4a"
QUEUE = Queue(application="app", name="jobs", partitions=MAX_PARTITIONS, uid=7, qid=7)


@given(
    st.integers(1, MAX_PARTITIONS),
    st.integers(0, ids.TICKS_MAX),
    st.integers(0, (1 << 62) - 1),
    st.integers(1, 10**18 - 1),
    st.integers(0, (1 << 56) - 1),
)
def test_a_receipt_survives_its_text(partition: int, ticks: int, tail: int, number: int, secret: int) -> None:
    """A receipt is parsed from its text as it was formatted, and its text has the message's id."""
    low = ids.parse_position(f"{'0' * 16}{tail | 1 << 63:016x}")[1]
    receipt = ClaimReceipt(partition, ticks, low, number, secret)
    text = format_receipt(receipt, QUEUE.qid)
    assert parse_receipt(text, QUEUE) == receipt
    assert ids.to_hex(receipt.position) in text


@pytest.mark.parametrize(
    "text",
    [
        *("", f"1-{ID}", f"0-{ID}-1", f"1-{ID}-01", f"1-{ID}-{'9' * 19}", f"1-{ID[:-1]}-1", f"1-{ID.upper()}-1"),
        *(f"1-{ID}-\u0661", f"1000-{ID}-1", f"1-{ID.replace('11b2', '41b2')}-1", f"1-{ID}-0"),
    ],
)
def test_text_that_is_not_a_receipt_is_refused(text: str) -> None:
    """Text that is not a receipt, or of a claim that holds nothing, is refused, as is a receipt of another queue."""
    suffix = format_receipt(ClaimReceipt(1, 1, 1, 1), QUEUE.qid)[-7:]
    with pytest.raises(InvalidReceipt) as raised:
        parse_receipt(text + suffix, QUEUE)
    assert not isinstance(raised.value, ReceiptOfAnotherQueue)
    for other in (f"1-{ID}-1-000000", f"1-{ID}-1{suffix}\n", f"{MAX_PARTITIONS + 1}-{ID}-1{suffix}"):
        with pytest.raises(InvalidReceipt):
            parse_receipt(other, QUEUE)
    with pytest.raises(ReceiptOfAnotherQueue):
        parse_receipt(f"1-{ID}-1-000000", QUEUE)
