"""Tests of the tree of errors."""

from __future__ import annotations

import inspect
import re

import pytest

from queuey.model import errors

ALL = [x for _, x in inspect.getmembers(errors, inspect.isclass) if issubclass(x, errors.QueueyError)]


def parents_in_docstring() -> dict[str, str | None]:
    """Returns each error of the tree in the docstring with its parent, None at the root."""
    tree: dict[str, str | None] = {}
    path: list[str] = []
    for line in (inspect.getdoc(errors) or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+)(?: |$)", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            tree[match[2]] = path[depth - 1] if depth else None
    return tree


def test_docstring_draws_the_tree() -> None:
    """The docstring has every error, each under its parent."""
    real = {kind.__name__: parent if (parent := kind.__mro__[1].__name__) != "Exception" else None for kind in ALL}
    assert parents_in_docstring() == real


def test_codes_are_unique() -> None:
    """Each code belongs to one error; an error without its own code has that of its parent."""
    codes = [vars(kind)["code"] for kind in ALL if kind not in {errors.WriteUndone, errors.Malformed}]
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not re.fullmatch(r"[A-Z][A-Za-z]+", code)] == []


def test_invalid_request_keeps_fields() -> None:
    """An invalid request has fields for programs and text for people; its code can be narrowed."""
    error = errors.InvalidRequest({"1.partition": "0 is less than minimum value 1"}, code="InvalidUpdate")
    assert error.fields == {"1.partition": "0 is less than minimum value 1"}
    assert str(error) == "1.partition: 0 is less than minimum value 1"
    assert error.code == "InvalidUpdate"
    assert errors.InvalidRequest({}).code == "InvalidParameter"
    assert errors.TooLarge({}).code == "TooLarge"


@pytest.mark.parametrize("kind", [k for k in ALL if issubclass(k, errors.StoreUnavailable)])
def test_unavailability_says_what_became_of_the_write(kind: type[errors.StoreUnavailable]) -> None:
    """By default nothing was stored and a retry makes sense after a second."""
    assert (kind("x").outcome, kind("x").retry_after) == ("none", 1)
    assert (kind("x", outcome="unknown", retry_after=7).outcome, kind("x", retry_after=7).retry_after) == ("unknown", 7)
