"""What is said of a write that was undone: that nobody has seen it only if a later check of the clock shows that."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from queuey.errors import Outcome, StoreUnavailable
from queuey.storage.cassandra.write.writer import MessageWriter

MINTED = 5.0


@pytest.mark.parametrize(
    ("undone", "sound", "wrong_until", "said"),
    [
        ("none", True, 0.0, "none"),
        ("none", False, 0.0, "unknown"),
        ("none", True, 6.0, "unknown"),
        ("unknown", True, 0.0, "unknown"),
    ],
)
def test_outcomes(undone: Outcome, sound: bool, wrong_until: float, said: Outcome) -> None:  # noqa: FBT001
    """A machine that stood still measured a time that was too short; the check must begin after the undo write."""
    asked: list[Callable[[StoreUnavailable | None], None]] = []

    writer: Any = MessageWriter.__new__(MessageWriter)
    writer._watch = SimpleNamespace(
        confirm_soon=asked.append, timed_correctly_since=lambda minted: minted > wrong_until
    )
    answers: list[Outcome] = []
    writer._make_sure(MINTED, answers.append, undone)
    assert bool(asked) == (undone == "none")
    for told in asked:
        assert answers == []
        told(None if sound else StoreUnavailable("the clock is off"))
    assert answers == [said]
