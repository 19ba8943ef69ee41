"""Tests of replacing parts for a test: they are found by themselves, restored, and never the wrong one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import cache

import pytest

from tests import replacing
from tests.replacing import replace, replace_in


class Thing:
    """A class with members of each kind."""

    class Inner:
        """A class inside another."""

        def method(self) -> str:
            return "before"

    def method(self) -> str:
        return "before"

    @staticmethod
    def of_none() -> str:
        return "before"

    @classmethod
    def of_class(cls) -> str:
        return "before"

    @property
    def value(self) -> str:
        return "before"


class Heir(Thing):
    """A subclass without members."""


def function() -> str:
    return "before"


@cache
def cached_function() -> str:
    return "before"


other_name = function

PARTS: dict[str, tuple[object, Callable[[], str], Callable[..., str]]] = {
    "function": (function, lambda: function(), lambda: "after"),  # noqa: PLW0108 - looks it up when it is called
    "wrapped function": (cached_function, lambda: cached_function(), lambda: "after"),  # noqa: PLW0108
    "method": (Thing.method, lambda: Thing().method(), lambda _: "after"),
    "inherited method": (Heir.method, lambda: Heir().method(), lambda _: "after"),
    "method of an inner class": (Thing.Inner.method, lambda: Thing.Inner().method(), lambda _: "after"),
    "staticmethod": (Thing.of_none, lambda: Thing().of_none(), lambda: "after"),
    "classmethod": (Thing.of_class, lambda: Thing().of_class(), lambda _: "after"),
    "inherited classmethod": (Heir.of_class, lambda: Heir().of_class(), lambda _: "after"),
    "property": (Thing.value, lambda: Thing().value, lambda _: "after"),
}


@pytest.mark.parametrize("part", PARTS)
def test_replaced_until_it_ends(part: str) -> None:
    """A part of any kind is replaced for all callers, and is restored afterwards, also after an error."""
    target, use, by = PARTS[part]
    before = dict(vars(Thing))
    with contextlib.suppress(KeyError), replace(target, by):
        assert use() == "after"
        raise KeyError
    assert use() == "before"
    assert dict(vars(Thing)) == before


def test_replaced_where_it_was_imported() -> None:
    """Every name of a module that is bound to the function is replaced, then restored; without a name it fails."""
    here, original = sys.modules[__name__], function
    with replace_in(here, function, lambda: "after"):
        assert (function(), other_name()) == ("after", "after")
    assert function is other_name is original
    with pytest.raises(TypeError, match="has no name"), replace_in(replacing, function, print):
        pass
