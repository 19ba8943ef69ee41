"""The parts of the storage contract. :mod:`queuey.storage` has the rules that hold for all of them."""

from __future__ import annotations

from typing import Any, TypeVar

Call = TypeVar("Call")


def never_waits(call: Call) -> Call:
    """Marks a call of the contract that waits for nothing, so that it needs no deadline (``deadlines.bounded``)."""
    marked: Any = call
    marked.never_waits = True
    return call
