"""Checks if the history of a name is linearizable, by the search of Wing and Gong, without repeated states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Literal, NamedTuple

Kind = Literal["PUT", "POST", "DELETE", "GET"]


class Call(NamedTuple):
    """A call and its answer.

    Attributes:
        kind: POST stores a value only if the name is free.
        value: Value to store.
        began, ended: Times; infinity if it may take effect at any later time, or never.
        status: Status of the answer; 0 if no answer tells the outcome.
        found: Value that GET returned.
    """

    kind: Kind
    value: str | None
    began: float
    ended: float = inf
    status: int = 0
    found: str | None = None

    @property
    def may_change(self) -> bool:
        return self.kind != "GET" and (self.kind != "POST" or self.status not in {200, 409})

    def is_possible(self, current_value: str | None) -> bool:
        """Returns whether a register with this value allows the answer; an unknown outcome is always possible."""
        match self.kind, self.status:
            case "GET", _:
                return current_value == self.found
            case "POST", 201:
                return current_value is None
            case "POST", 200:
                return current_value == self.value
            case "POST", 409:
                return current_value not in {None, self.value}
            case _:
                return True

    def value_after(self, current_value: str | None) -> str | None:
        """Returns the value after the call took effect; a POST sets only a register without a value."""
        return self.value if self.may_change and (self.kind != "POST" or current_value is None) else current_value


State = tuple[int, str | None]
"""The calls that have taken effect, a bit each, and the resulting value."""


def is_linearizable(history: Iterable[Call]) -> bool:
    """Returns whether the calls may have taken effect one after another, each while it was running.

    At first the name is free.
    """
    calls = sorted(history, key=lambda call: call.began)
    answered = sum(1 << number for number, call in enumerate(calls) if call.ended < inf)
    start: State = (0, None)
    visited, todo = {start}, [start]
    while todo:
        state = todo.pop()
        if state[0] & answered == answered:
            return True
        for future in _find_next_states(calls, state):
            if future not in visited:
                visited.add(future)
                todo.append(future)
    return False


def _find_next_states(calls: Sequence[Call], state: State) -> list[State]:
    """Returns the states after each call that may take effect next; if one changes nothing, only after that."""
    past, value = state
    possible = [number for number in _find_next_calls(calls, past) if calls[number].is_possible(value)]
    # A call that changes nothing may as well come first.
    observing = [number for number in possible if not calls[number].may_change]
    return [(past | 1 << number, calls[number].value_after(value)) for number in observing[:1] or possible]


def _find_next_calls(calls: Sequence[Call], past: int) -> Iterator[int]:
    """Yields the calls that may take effect next: no other pending call had ended when they began."""
    soonest = inf
    for number in range((~past & (past + 1)).bit_length() - 1, len(calls)):
        if calls[number].began > soonest:
            return
        if not past >> number & 1:
            yield number
            soonest = min(soonest, calls[number].ended)
