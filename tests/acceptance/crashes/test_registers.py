"""The check of histories accepts possible ones and refuses impossible ones."""

from __future__ import annotations

import pytest

from tests.acceptance.crashes.registers import Call, is_linearizable

PUT = Call("PUT", "a", 1, 2, 200)
UNANSWERED_PUT = Call("PUT", "b", 3)


def make_get(value: str | None, began: float, ended: float) -> Call:
    return Call("GET", None, began, ended, 200 if value else 404, value)


@pytest.mark.parametrize(
    ("is_possible", "history"),
    [
        (True, [PUT, make_get(None, 0, 3), make_get("a", 0, 3)]),
        (True, [PUT, UNANSWERED_PUT, make_get("a", 4, 5), make_get("b", 6, 7)]),
        (True, [PUT, Call("POST", "b", 0, 3, 201), make_get("a", 4, 5)]),
        (True, [PUT, Call("POST", "a", 3, 4, 200), Call("POST", "b", 3, 4, 409), Call("DELETE", None, 3, 4, 200)]),
        (True, [PUT, Call("POST", "b", 3), Call("DELETE", None, 4, 5, 200), make_get(None, 6, 7), make_get("b", 8, 9)]),
        (False, [PUT, make_get("b", 3, 4)]),
        (False, [PUT, UNANSWERED_PUT, make_get("b", 4, 5), make_get("a", 6, 7)]),
        (False, [PUT, UNANSWERED_PUT, make_get("b", 2.1, 2.5)]),
        (False, [PUT, Call("POST", "b", 3, 4, 201)]),
        (False, [PUT, Call("PUT", "b", 3, 4, 200), make_get("b", 5, 8), make_get("a", 6, 7)]),
    ],
)
def test_histories(history: list[Call], *, is_possible: bool) -> None:
    """Calls at once have any order, and one without an answer may take effect late or never; what fits none shows."""
    assert is_linearizable(history) is is_possible
