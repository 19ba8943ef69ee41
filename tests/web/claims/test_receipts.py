"""Forged receipts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.caller import Caller
from tests.web.claims.test_claims import settle, statuses


@pytest.fixture
def mine(owner: Caller) -> dict[str, Any]:
    """Claims the first of three messages in the queue ``q``."""
    owner.create("q")
    for body in "abc":
        owner.post("q", body)
    return owner.claim(limit=1, ttl=100)[0]


def alter_receipt(receipt: str, **fields: str) -> str:
    parts = dict(zip(("partition", "id", "number", "secret", "mark"), receipt.split("-"), strict=True))
    return "-".join(part for part in (parts | fields).values() if part)


@pytest.mark.parametrize("what", ["ack", "renew", "release"])
@pytest.mark.parametrize("secret", ["", "0" * 14, "mine"])
def test_receipts_that_are_made_up(owner: Caller, mine: dict[str, Any], what: str, secret: str) -> None:
    """A caller that knows a message's id and delivery entry, but not the receipt, cannot affect the claim."""
    (other,) = owner.claim(limit=1, ttl=100)
    if secret == "mine":
        secret = mine["receipt"].split("-")[3]
    made_up = alter_receipt(other["receipt"], secret=secret)
    reply = settle(owner, what, made_up)
    assert (reply.status, list(reply.errors)) == (409, ["ClaimLost"])
    assert owner.get("q/claims").json["claimed"] == 2
    assert statuses(settle(owner, what, other["receipt"])) == ["ok"]


@pytest.mark.parametrize("what", ["ack", "renew", "release"])
def test_receipts_that_name_no_delivery(owner: Caller, mine: dict[str, Any], what: str) -> None:
    """Number 0, which a claim with a ttl of 0 shows, is bad input, with a secret and without."""
    (shown,) = owner.claim(limit=1, ttl=0)
    for receipt in (
        shown["receipt"],
        alter_receipt(mine["receipt"], number="0"),
        alter_receipt(mine["receipt"], number="0", secret=""),
    ):
        reply = settle(owner, what, receipt)
        assert (reply.status, list(reply.errors)) == (400, ["receipts.0"]), receipt
    assert "only shows messages" in reply.text
    assert owner.get("q/claims").json["claimed"] == 1
