"""Whether and when a failed message is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qdo.errors import InvalidArgument
from qdo.worker.settings import Retry

draws = some.floats(0, 1)


@given(some.integers(1, 200), draws, some.floats(0, 100), some.floats(0, 1000))
def test_a_pause_is_drawn_from_zero_to_a_bound_that_doubles(
    attempt: int, draw: float, base: float, more: float
) -> None:
    """The pause is the drawn part of ``base``, doubled with each attempt, and never above ``cap``."""
    retry = Retry(attempts=0, base=base, cap=base + more)
    pause = retry.after(attempt, (), draw)
    assert pause is not None
    assert pause == pytest.approx(draw * min(base + more, base * 2.0 ** (attempt - 1)))


@given(some.integers(1, 50), draws)
def test_there_are_as_many_attempts_as_allowed(attempts: int, draw: float) -> None:
    """The last allowed attempt is followed by none, each one before it by another."""
    retry = Retry(attempts=attempts)
    followed = [retry.after(attempt, (), draw) is not None for attempt in range(1, attempts + 1)]
    assert followed == [True] * (attempts - 1) + [False]


def test_an_error_that_never_passes_is_not_tried_again() -> None:
    """A class named in ``never`` ends it at once, and so do its subclasses."""
    retry = Retry(never=("LookupError",))
    assert retry.after(1, ("KeyError", "LookupError", "Exception"), 0.5) is None
    assert retry.after(1, ("ValueError", "Exception"), 0.5) is not None


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": -1}, {"base": -1.0}, {"base": 2.0, "cap": 1.0}, {"cap": float("inf")}, {"base": float("nan")}],
)
def test_what_is_no_policy_is_refused(wrong: dict[str, float]) -> None:
    """Negative counts and pauses, and bounds the wrong way round, are refused when they are made."""
    with pytest.raises(InvalidArgument):
        Retry(**wrong)  # type: ignore[arg-type]
