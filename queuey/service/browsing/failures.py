"""Reasons that dead letters share: pure functions of messages."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queuey.deadletters import DeadLetter, shape_of, stored_dead_letter
from queuey.messages import Message

MAX_SHAPED = 500
"""Max characters of an error's text that count."""


class Failure(msgspec.Struct, frozen=True):
    """Dead letters with one reason.

    Attributes:
        queue: Where they came from.
        error: Class of the last error.
        shape: The common form of the errors' texts.
        count: Number in the sample.
        latest: When the last of them was given up, in seconds since 1970.
        partition, id: Place of that one.
    """

    queue: str
    error: str
    shape: str
    count: int
    latest: float
    partition: int
    id: str


class Failures(msgspec.Struct, frozen=True):
    """A sample of a queue of dead letters.

    Attributes:
        lies_in: The queue.
        sampled: Messages in the sample, the newest ones.
        unknown: Those without a reason.
        groups: The most frequent reason first.
    """

    lies_in: str
    sampled: int
    unknown: int
    groups: list[Failure]


def grouped(messages: Iterable[Message], lies_in: str) -> Failures:
    groups: dict[tuple[str, str, str], list[DeadLetter]] = {}
    sampled = unknown = 0
    for message in messages:
        sampled += 1
        one = stored_dead_letter(message, lies_in)
        if one is None:
            unknown += 1
            continue
        key = (one.queue, one.cause.error, shape_of(one.cause.text[:MAX_SHAPED]))
        groups.setdefault(key, []).append(one)
    found = [_failure(key, letters) for key, letters in groups.items()]
    return Failures(lies_in, sampled, unknown, sorted(found, key=lambda each: (-each.count, -each.latest)))


def by_reason(samples: Iterable[Failures]) -> list[list[tuple[str, Failure]]]:
    """Merges failures of one reason, each with its queue of dead letters; the most frequent reason first."""
    reasons: dict[tuple[str, str], list[tuple[str, Failure]]] = {}
    for sample in samples:
        for one in sample.groups:
            reasons.setdefault((one.error, one.shape), []).append((sample.lies_in, one))
    return sorted(reasons.values(), key=lambda some: -sum(one.count for _, one in some))


def _failure(key: tuple[str, str, str], letters: list[DeadLetter]) -> Failure:
    last = max(letters, key=lambda one: one.cause.at)
    return Failure(*key, len(letters), last.cause.at, last.stored_partition, last.stored_id)
