"""The scope of a key as the text that stores keep; None stays None."""

from __future__ import annotations

import msgspec

from queuey.messages import Scope

_decode = msgspec.json.Decoder(Scope).decode


def to_text(scope: Scope | None) -> str | None:
    return None if scope is None else msgspec.json.encode(scope).decode()


def from_text(text: str | None) -> Scope | None:
    """Reads the result of :func:`to_text`.

    Raises:
        msgspec.DecodeError: It is something else; a key with such a scope opens nothing.
    """
    return None if text is None else _decode(text)
