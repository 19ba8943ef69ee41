"""A rule is a named pure function from a history to texts, one for each violation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.harness.results import Violation


class Limits(NamedTuple):
    """Bounds of a run, in seconds.

    Attributes:
        apart: Each web process is in a data centre of its own. G1 and G2 then hold for clients of the same one.
        bound: Max time of a request whose web process is neither paused nor killed.
        grace: Time after a fault in which requests may still fail.
        calm: Time without faults, after the grace, in which requests must succeed.
        deadline: Max time of a write (W).
        reaction: Max time from the order to stop until a worker begins no more messages.
        late: Max time from the end of a process's stop until it knows that its session has ended.
        unaware: Max time until a worker knows that its session was ended. It may not be notified, and then finds out by
            the silence.
        recovery: Time after a fault of the coordination service until its effects are over.
        settling: Changes of membership within this time count as one.
        epochs: Versions are epochs of ownership, which commits do not change.
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
"""By the name used in violations and reports: the rule, and the name of the count of what it is applied to."""


def check(history: object, rules: Rules, limits: Limits = LIMITS) -> list[Violation]:
    return [Violation(name, text) for name, (broken, _) in rules.items() for text in broken(history, limits)]


def count_checked(counts: Mapping[str, int], rules: Rules) -> dict[str, int]:
    """Returns for each rule the count of its subject: how often it was checked."""
    return {name: counts[subject] for name, (_, subject) in rules.items()}
