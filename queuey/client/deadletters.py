"""The format of dead letters, for those who know of Queuey only its client."""

from queuey.deadletters import (
    SUFFIX,
    TTL,
    WAYS,
    Cause,
    Choice,
    DeadLetter,
    Origin,
    Way,
    headers_of,
    holds_dead,
    is_carried,
    letter_from,
    queue_for,
)

__all__ = [
    "SUFFIX",
    "TTL",
    "WAYS",
    "Cause",
    "Choice",
    "DeadLetter",
    "Origin",
    "Way",
    "headers_of",
    "holds_dead",
    "is_carried",
    "letter_from",
    "queue_for",
]
