"""What rules are: pure functions from a history to the texts of what breaks them, each under a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.harness.results import Violation


class Limits(NamedTuple):
    """What a run allows, in seconds.

    Attributes:
        apart: Each web process is of a data centre of its own: G1 and G2 hold for who writes and reads by the same.
        bound: A request may take so long, as long as its web process is neither paused nor killed.
        grace: After the end of a fault requests may still fail for so long.
        calm: Without any fault for so long, beyond the grace, requests must succeed.
        deadline: Of a write (W).
        reaction: From the moment when a worker hears that it is to stop until it begins nothing any more.
        late: After a stop of a process until it knows that its session has ended.
        unaware: After a session was ended behind its worker's back until the worker knows. Nobody may tell it, and
            then it is the silence that does.
        recovery: After a fault of the coordination service, until its effects are over.
        settling: Within which changes of membership count as one.
        epochs: Versions are epochs of ownerships, which commits do not change.
    """

    apart: bool = False
    bound: float = 25.0
    grace: float = 5.0
    calm: float = 2.0
    deadline: float = 1.0
    reaction: float = 0.15
    late: float = 1.0
    unaware: float = 1.0
    recovery: float = 6.0
    settling: float = 2.0
    epochs: bool = False


LIMITS = Limits()
Texts = Iterable[str]
Rules = Mapping[str, tuple[Callable[[Any, Limits], Texts], str]]
"""By the name that violations and reports carry: the rule, and what it is applied to, by its name among the counts."""


def check(history: object, rules: Rules, limits: Limits = LIMITS) -> list[Violation]:
    """Applies rules to a history."""
    return [Violation(name, text) for name, (broken, _) in rules.items() for text in broken(history, limits)]


def checked(counts: Mapping[str, int], rules: Rules) -> dict[str, int]:
    """Returns to how many records each rule was applied."""
    return {name: counts[subject] for name, (_, subject) in rules.items()}
