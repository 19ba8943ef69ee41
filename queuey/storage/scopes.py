"""The scope of a key as the text that stores keep."""

from __future__ import annotations

import msgspec

from queuey.messages import Scope

_decode = msgspec.json.Decoder(Scope).decode


def to_text(scope: Scope | None) -> str | None:
    """Writes a scope; None, for a key that is limited to nothing, stays None."""
    return None if scope is None else msgspec.json.encode(scope).decode()


def from_text(text: str | None) -> Scope | None:
    """Reads what :func:`to_text` has written.

    Raises:
        msgspec.DecodeError: It is something else; a key with such a scope opens nothing.
    """
    return None if text is None else _decode(text)
