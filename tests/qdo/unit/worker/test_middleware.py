"""Hooks around messages."""

from __future__ import annotations

import pytest

from qdo.errors import InvalidArgument
from qdo.worker.failure import Delivery
from qdo.worker.handlers import Hooks, Middleware
from queuey.client import Message
from tests.qdo.unit.worker.dead_letter_samples import FIRST, message

PLACE = Delivery(FIRST, 1)


class Noted(Middleware):
    """Writes down what it is told."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def before(self, message: Message, delivery: Delivery) -> None:
        """Notes it."""
        self.notes.append(f"{self.name} before")

    def after(self, message: Message, delivery: Delivery) -> None:
        """Notes it."""
        self.notes.append(f"{self.name} after")


class Broken:
    """Fails."""

    def before(self, message: Message, delivery: Delivery) -> None:
        """Raises."""
        raise ValueError("broken")


class Quiet(Middleware):
    """Wants nothing."""


def test_the_first_is_the_outermost() -> None:
    """Hooks before are called in order, hooks after in the reverse order."""
    notes: list[str] = []
    hooks = Hooks([Noted("a", notes), Noted("b", notes)], lambda name: None)
    hooks.call("before", message(1), PLACE)
    hooks.call("after", message(1), PLACE)
    assert notes == ["a before", "b before", "b after", "a after"]


def test_a_hook_that_raises_keeps_nobody_from_anything() -> None:
    """The error goes no further, is counted, and the other hooks are called."""
    notes: list[str] = []
    broken: list[str] = []
    Hooks([Broken(), Noted("b", notes)], broken.append).call("before", message(1), PLACE)
    assert (broken, notes) == (["before"], ["b before"])


def test_hooks_that_nobody_wrote_cost_nothing() -> None:
    """The methods of the base class count as absent, so that no call is made for them."""
    assert not Hooks([Quiet()], lambda name: None).around
    assert Hooks([Broken()], lambda name: None).around


def test_what_is_no_middleware_is_refused() -> None:
    """An object without hooks, and a hook that would have to be awaited, are refused at once."""

    class Late:
        async def before(self, message: Message, delivery: Delivery) -> None:
            """Would never be awaited."""

    for wrong in (object(), Late()):
        with pytest.raises(InvalidArgument):
            Hooks([wrong], lambda name: None)
