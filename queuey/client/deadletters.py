"""The format of dead letters, for those who know of Queuey only its client."""

from queuey.deadletters import (
    SUFFIX,
    TTL,
    WAYS,
    Cause,
    DeadLetter,
    DeadLetterChoice,
    Origin,
    Way,
    dead_letter_from,
    headers_of,
    holds_dead,
    is_carried,
    queue_for,
)

__all__ = [
    "SUFFIX",
    "TTL",
    "WAYS",
    "Cause",
    "DeadLetter",
    "DeadLetterChoice",
    "Origin",
    "Way",
    "dead_letter_from",
    "headers_of",
    "holds_dead",
    "is_carried",
    "queue_for",
]
