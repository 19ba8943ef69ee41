"""The answers of a worker that has claimed messages, or settled receipts, for another one."""

from __future__ import annotations

from msgspec import to_builtins

from queuey.claims.log.forwarding import CLAIM_TOPIC, SETTLE_TOPIC, _Claim, _Settle
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome, ReceiptStatus
from queuey.model.messages import Message, Meta, Queue

QUEUE = Queue(application="a", name="q", uid=(1 << 62) - 1, qid=1)
RECEIPT = ClaimReceipt(1, 1 << 59, -(1 << 63), 7, (1 << 56) - 1)


def test_claimed_messages_come_as_they_are() -> None:
    """Claimed messages arrive unchanged, text and bytes, with and without metadata."""
    bodies = (("text", None), (b"\xff", Meta("application/json", (("name", "value"),), json=True)))
    messages = [Message(1 << 59, -(1 << 63), 1, 1 << 60, body, meta) for body, meta in bodies]
    claimed = [ClaimDelivery(message, RECEIPT, 2, 5.5, 3, suspected=True) for message in messages]
    answers: list[bytes | None] = []
    CLAIM_TOPIC.handle(
        lambda _asked, answer: answer(claimed), CLAIM_TOPIC.write(_Claim(QUEUE, 1, 2, 3.0, 4, "w")), answers.append
    )
    received = CLAIM_TOPIC.read(answers[0])
    assert to_builtins(received, builtin_types=(bytes,)) == to_builtins(claimed, builtin_types=(bytes,))


def test_settlements_come_as_they_are() -> None:
    """Settlements arrive with the status and the expiry of each receipt."""
    settled = [ReceiptOutcome(RECEIPT, status, 1.5) for status in ReceiptStatus]
    answers: list[bytes | None] = []
    request = _Settle(QUEUE, 1, "release", (RECEIPT,), 60.0, None)
    SETTLE_TOPIC.handle(lambda _asked, answer: answer(settled), SETTLE_TOPIC.write(request), answers.append)
    assert SETTLE_TOPIC.read(answers[0]) == settled
