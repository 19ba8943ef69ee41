"""Moves as callers of this API have them: references in base32, and three words for how a move stands."""

from __future__ import annotations

import binascii
from base64 import b32decode, b32encode

from queuey.api.progress import Move
from queuey.facades.emodb.names import shown_name

_STATUS = {"running": "IN_PROGRESS", "cancelling": "IN_PROGRESS", "done": "COMPLETE"}


def reference_of(move: str) -> str:
    return b32encode(bytes.fromhex(move)).decode().rstrip("=")


def move_of(reference: str) -> str | None:
    """Returns the id of a move, None if no move has the reference."""
    try:
        return b32decode(reference + "=" * (-len(reference) % 8)).hex()
    except (ValueError, binascii.Error):
        return None


def shown_move(report: Move) -> dict[str, str]:
    return {
        "from": shown_name(report.source),
        "to": shown_name(report.target),
        "status": _STATUS.get(report.state, "ERROR"),
    }
