"""The driver's errors as ours, and what each says about a write.

A write is certainly without effect only if no node was given it, or the only node that was given it refused before
doing anything (``Unavailable``). Everything else leaves doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cassandra import (
    AlreadyExists,
    AuthenticationFailed,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    Unauthorized,
    Unavailable,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage

from queuey.errors import Outcome, StoreUnavailable

log = logging.getLogger(__name__)

DRIVER_ERRORS = (DriverException, NoHostAvailable, ConnectionException, ErrorMessage, OSError)
"""Everything that the driver raises on purpose; ``InvalidRequest`` and timeouts are ``DriverException``s.

Errors of the server that the driver knows no class for are ``ErrorMessage``s: overload, and a lightweight transaction
whose result is unknown.
"""


class InDoubt(StoreUnavailable):
    """It is unknown whether the write took effect."""

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, outcome="unknown", retry_after=retry_after)


class TooManyDead(StoreUnavailable):
    """A read would walk over more deleted and expired rows than Cassandra lets it (``tombstone_failure_threshold``)."""


def translate(error: BaseException, *, reads: bool, attempts: int = 1) -> StoreUnavailable:
    """Returns the store's error for one of the driver; ``attempts``: how many nodes were given the request."""
    outcome: Outcome = "none" if reads or _without_effect(error, attempts) else "unknown"
    message = f"Cassandra {_describe(error)}"
    if isinstance(error, ReadFailure):
        # Version 4 of the protocol does not say why a replica failed; this is by far the likeliest.
        dead = TooManyDead(message)
        dead.__cause__ = error
        return dead
    found = StoreUnavailable(message, outcome="none") if outcome == "none" else InDoubt(message)
    found.__cause__ = error
    return found


def worst(errors: Sequence[StoreUnavailable], *, some_made: bool = False) -> StoreUnavailable:
    """Returns the error to raise for several: one that a smaller request would avoid comes last."""
    found = max(errors, key=lambda error: (error.outcome == "unknown", not isinstance(error, TooManyDead)))
    if not some_made or found.outcome == "unknown":
        return found
    doubt = InDoubt(f"{found}; others of these writes were made", retry_after=found.retry_after)
    doubt.__cause__ = found
    return doubt


def _without_effect(error: BaseException, attempts: int) -> bool:
    if isinstance(error, NoHostAvailable):
        # The errors are of the driver's own attempts, which it counts only after they were sent.
        return not attempts and all(_not_sent(one) for one in _errors_of(error))
    if isinstance(error, Unavailable | InvalidRequest | Unauthorized | AlreadyExists):
        return attempts <= 1
    return False


def _not_sent(error: object) -> bool:
    """Returns whether one node's error in ``NoHostAvailable`` means that the node never got the request."""
    return isinstance(error, NoConnectionsAvailable) or (
        isinstance(error, ConnectionException) and ("marked down" in str(error) or "Pool is shutdown" in str(error))
    )


def _errors_of(error: NoHostAvailable) -> list[object]:
    errors = error.errors
    return list(errors.values()) if isinstance(errors, dict) else list(errors or ())


def _describe(error: BaseException) -> str:
    if isinstance(error, OperationTimedOut):
        return "did not answer in time"
    if isinstance(error, Unavailable):
        return f"has too few replicas alive ({error.alive_replicas} of {error.required_replicas} needed)"
    if isinstance(error, NoHostAvailable):
        causes = {_cause(one) for one in _errors_of(error)}
        return f"cannot be reached ({'; '.join(sorted(causes)) or 'no node is up'})"
    if isinstance(error, InvalidRequest):
        return f"refused the request ({_first_line(error)}); is the schema up to date? See `queuey migrate`"
    if isinstance(error, Unauthorized | AuthenticationFailed):
        return f"does not let this user in ({_first_line(error)})"
    return f"failed: {_first_line(error)}"


def _cause(error: object) -> str:
    return "no answer in time" if isinstance(error, OperationTimedOut) else _first_line(error)


def _first_line(error: object) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:200]
