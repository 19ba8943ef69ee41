"""Translates the driver's errors, and decides what each says about a write.

A write certainly had no effect only if no node was given it, or if the only node that was given it refused before doing
anything (``Unavailable``, ``InvalidRequest``, ``Unauthorized``, ``AlreadyExists``). Everything else leaves doubt.
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
from cassandra.protocol import ErrorMessage, IsBootstrappingErrorMessage, PreparedQueryNotFound

from queuey.model.errors import Outcome, StoreUnavailable

log = logging.getLogger(__name__)

DRIVER_ERRORS = (DriverException, NoHostAvailable, ConnectionException, ErrorMessage, OSError)
"""All errors that the driver raises on purpose; ``InvalidRequest`` and timeouts are ``DriverException``s.

Server errors without a class in the driver are ``ErrorMessage``s: overload, and a lightweight transaction whose result
is unknown.
"""


class InDoubt(StoreUnavailable):
    """It is unknown whether the write took effect."""

    code = "StoreUnavailable"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, outcome="unknown", retry_after=retry_after)


class TooManyDead(StoreUnavailable):
    """A read met more deleted and expired rows than Cassandra allows (``tombstone_failure_threshold``)."""

    code = "StoreUnavailable"


def translate(error: BaseException, *, reads: bool, attempts: int = 1) -> StoreUnavailable:
    """Returns the store's error for a driver error; ``attempts``: number of nodes that were given the request.

    It is :class:`InDoubt` for a write that a node may have applied, and :class:`TooManyDead` for a read that a replica
    failed (a ``ReadFailure``). A conditional write may fail so as well, after an earlier try of its own was applied.
    """
    outcome: Outcome = "none" if reads or _has_no_effect(error, attempts) else "unknown"
    message = f"Cassandra {_describe(error)}"
    if reads and isinstance(error, ReadFailure):
        # Version 4 of the protocol does not say why a replica failed; tombstones are by far the likeliest cause.
        too_many = TooManyDead(message)
        too_many.__cause__ = error
        return too_many
    store_error = StoreUnavailable(message, outcome="none") if outcome == "none" else InDoubt(message)
    store_error.__cause__ = error
    return store_error


def choose_worst(errors: Sequence[StoreUnavailable], *, some_made: bool = False) -> StoreUnavailable:
    """Returns the error to raise for several: one with an unknown outcome first, :class:`TooManyDead` last.

    A smaller request would avoid :class:`TooManyDead`. ``some_made``: other writes succeeded, so the outcome becomes
    unknown.
    """
    chosen = max(errors, key=lambda error: (error.outcome == "unknown", not isinstance(error, TooManyDead)))
    if not some_made or chosen.outcome == "unknown":
        return chosen
    doubt = InDoubt(f"{chosen}; other writes of this request were made", retry_after=chosen.retry_after)
    doubt.__cause__ = chosen
    return doubt


def _has_no_effect(error: BaseException, attempts: int) -> bool:
    if isinstance(error, NoHostAvailable):
        # These errors come from the driver's own attempts, which it counts only after they were sent.
        return not attempts and all(_was_not_sent(cause) for cause in _errors_of(error))
    if isinstance(error, IsBootstrappingErrorMessage | PreparedQueryNotFound):
        return not attempts
    if isinstance(error, Unavailable | InvalidRequest | Unauthorized | AlreadyExists):
        return attempts <= 1
    return False


def _was_not_sent(error: object) -> bool:
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
        causes = {_describe_cause(cause) for cause in _errors_of(error)}
        return f"cannot be reached ({'; '.join(sorted(causes)) or 'no node is up'})"
    if isinstance(error, InvalidRequest):
        return f"refused the request ({_first_line(error)}); is the schema up to date? See `queuey migrate`"
    if isinstance(error, Unauthorized | AuthenticationFailed):
        return f"does not let this user in ({_first_line(error)})"
    return f"failed: {_first_line(error)}"


def _describe_cause(error: object) -> str:
    return "no answer in time" if isinstance(error, OperationTimedOut) else _first_line(error)


def _first_line(error: object) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:200]
