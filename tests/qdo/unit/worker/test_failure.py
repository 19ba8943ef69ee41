"""The effect of an error on its message and on the worker."""

from __future__ import annotations

import pytest

from qdo.worker.failure import Failure


class Mute(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_a_failure_names_class_text_and_place() -> None:
    """A failure has the class with its module unless built in, its base classes, and a traceback to the place."""
    with pytest.raises(Mute) as raised:
        raise Mute
    failure = Failure.of(raised.value)
    assert failure.kind == f"{__name__}.Mute"
    assert failure.text == ""
    assert {"Mute", f"{__name__}.Mute", "Exception"} <= set(failure.kinds)
    assert "test_a_failure_names_class_text_and_place" in failure.trace
    of_key_error = Failure.of(KeyError("a"))
    assert (of_key_error.kind, str(of_key_error)) == ("KeyError", "KeyError: 'a'")


def test_an_error_keeps_the_ends_of_a_long_text() -> None:
    """The logged and stored text of a long error is bounded, and shows where it was raised."""
    with pytest.raises(ValueError, match="first") as raised:
        raise ValueError("first" + "x" * 3_000_000 + "last")
    failure = Failure.of(raised.value)
    assert len(failure.text) < 2_100
    assert len(failure.trace) < 20_100
    assert failure.text.startswith("first")
    assert failure.text.endswith("last")
    assert "test_an_error_keeps_the_ends_of_a_long_text" in failure.trace
