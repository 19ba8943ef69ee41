"""What is said of a write that was undone: that nobody has seen it only if a later check of the clock shows that."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from queuey.errors import Outcome
from queuey.storage.cassandra.write.writer import MessageWriter

NOW, MINTED = 7.0, 5.0


class Pool:
    """Does at once what it is given, unless it is closed."""

    def __init__(self, *, closed: bool) -> None:
        self._closed = closed

    def submit(self, work: Callable[..., object], *arguments: object) -> None:
        """See ``Executor``."""
        if self._closed:
            raise RuntimeError
        work(*arguments)


@pytest.mark.parametrize(
    ("undone", "sound", "wrong_until", "closed", "said"),
    [
        ("none", True, 0.0, False, "none"),
        ("none", False, 0.0, False, "unknown"),
        ("none", True, 6.0, False, "unknown"),
        ("none", True, 0.0, True, "unknown"),
        ("unknown", True, 0.0, False, "unknown"),
    ],
)
def test_outcomes(undone: Outcome, sound: bool, wrong_until: float, closed: bool, said: Outcome) -> None:  # noqa: FBT001
    """A machine that stood still measured a time that was too short; the check must begin after the undo write."""
    asked: list[float] = []

    def check(*, since: float) -> bool:
        asked.append(since)
        return sound

    writer: Any = MessageWriter.__new__(MessageWriter)
    writer._clock = SimpleNamespace(boottime=lambda: NOW)
    writer._watch = SimpleNamespace(check=check, vouches=lambda minted: minted > wrong_until)
    writer._pool = Pool(closed=closed)
    writer._deadline = SimpleNamespace(run=lambda work: work())
    answers: list[Outcome] = []
    writer._make_sure(MINTED, answers.append, undone)
    assert answers == [said]
    assert asked in ([NOW], [])
    assert bool(asked) == (undone == "none" and not closed)
