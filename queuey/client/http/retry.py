"""Decides whether a failed call is sent again, and after how long."""

from __future__ import annotations

import msgspec

from queuey.client.errors import (
    ApiError,
    ClientError,
    InvalidArgument,
    KeyInUse,
    ServerError,
    TooManyWaiters,
    TransportError,
)

_GATEWAY = frozenset({429, 502, 503, 504})
"""Statuses of a server that may answer later. A plain 500 is not one."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The number and the pauses of a client's retries.

    A call is repeated only if that is safe: it changes nothing, has the same effect twice (PUT and DELETE of messages
    by id), carries an idempotency key (sends do, where there is more than one round), or certainly was not processed
    (no connection; 429, or 503 with outcome ``none``; too many long polls). Any other call that broke off may
    have been carried out, and the caller decides.

    Attributes:
        rounds: Attempts, not counting those that move on at once to a server that is not known to be down. 1: never
            pause and try again.
        base: Seconds; the pause after the first attempt is drawn from 0 to ``base``, then to twice that, and so on.
        cap: Max seconds of that upper bound.
        retry_after_cap: Max seconds by which Retry-After prolongs a pause.
        deadline: Max seconds of a whole call with all its attempts, without the time that it asks the server to wait.
        cool_down: Seconds for which a server that failed is avoided while there are others.

    Example:
        >>> from queuey.client import RetryPolicy
        >>> patient = RetryPolicy(rounds=20, cap=30, deadline=600)
        >>> patient.rounds, patient.base
        (20, 0.2)
    """

    rounds: int = 5
    base: float = 0.2
    cap: float = 5.0
    retry_after_cap: float = 30.0
    deadline: float = 60.0
    cool_down: float = 30.0

    def __post_init__(self) -> None:
        """Refuses negative times and a client that never tries."""
        times = (self.base, self.cap, self.retry_after_cap, self.deadline, self.cool_down)
        if self.rounds < 1 or not all(time >= 0 for time in times):
            raise InvalidArgument("a retry policy has at least one round and no negative times")

    def limited(self, within: float | None) -> RetryPolicy:
        """Returns the policy of a call that is useless after ``within`` seconds; None: never."""
        if within is None or within >= self.deadline:
            return self
        return msgspec.structs.replace(self, deadline=within)

    def pause(self, rounds: int, draw: float, retry_after: float | None = None) -> float:
        """Returns the seconds to wait after a number of failed attempts.

        Args:
            rounds: The number.
            draw: A random number from 0 to 1; with it callers that failed together come back apart.
            retry_after: The pause that the server asked for; the jitter is added to it.
        """
        jitter = draw * min(self.cap, self.base * 2.0 ** min(rounds - 1, 30))
        return min(retry_after or 0.0, self.retry_after_cap) + jitter


def may_repeat(error: ClientError, *, repeatable: bool) -> bool:
    """Returns whether a call that failed so may be sent again; ``repeatable``: sending it twice does no harm."""
    if isinstance(error, TransportError):
        return repeatable or error.outcome == "none"
    if isinstance(error, ServerError) and error.not_processed:
        return True
    if isinstance(error, KeyInUse):
        return repeatable
    return repeatable and isinstance(error, ServerError) and error.status in _GATEWAY


def may_be_done(error: ClientError) -> bool:
    """Returns whether an attempt that failed so may have been carried out."""
    if isinstance(error, TransportError):
        return error.outcome == "unknown"
    return isinstance(error, KeyInUse) or (isinstance(error, ServerError) and not error.not_processed)


def blames_server(error: ClientError) -> bool:
    """Returns whether the failure is that server's own, so that others are preferred for a while."""
    if isinstance(error, TransportError):
        return True
    return isinstance(error, ServerError) and error.status in _GATEWAY and not isinstance(error, TooManyWaiters)


def asked_pause(error: ClientError) -> float | None:
    """Returns the seconds of Retry-After, if the server sent it."""
    return error.retry_after if isinstance(error, ApiError) else None
