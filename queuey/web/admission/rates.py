"""Rate limits of applications and users: token buckets, in the memory of this process.

A bucket of ``burst`` tokens is filled with ``rate`` tokens a second, and each request takes one out (Turner, "New
directions in communications", IEEE Communications Magazine 24/10, 1986, as the leaky bucket; RFC 2697 has it as a
meter). A bucket is kept as one number, the time at which it will be full again, as in the virtual scheduling
algorithm of ITU-T I.371. A full bucket equals a new one, so it need not be kept.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from queuey.model.errors import TooManyRequests
from queuey.model.messages import OPERATORS
from queuey.model.rights import Caller, application_of_scoped_name, owner_name
from queuey.settings import Rates
from queuey.web.responses import Header

MAX_BUCKETS = 16_384
"""Max buckets of each kind: users, applications."""

MAX_COUNTED = 4096
"""Max names with a counter."""


class Rate(NamedTuple):
    """Refill rate and capacity of a bucket."""

    rate: float
    burst: int


class TokenBucket(NamedTuple):
    """State of a bucket for a request.

    Attributes:
        tokens_left: Tokens after the request.
        seconds_to_full: Seconds until the bucket is full again.
        seconds_to_token: Seconds until there is a token, or 0 if the request takes one.
    """

    tokens_left: int
    seconds_to_full: float
    seconds_to_token: float


class _CountedRate(NamedTuple):
    """A bucket that a request counts for: the kind and the name of its owner, its rate, and its state."""

    kind: str
    name: str
    rate: Rate
    bucket: TokenBucket


class Buckets:
    """Buckets by the name of their application or user.

    When there are too many, the quarter that is nearest to full is dropped: these start full again, with little more
    than they had.

    Args:
        max_buckets: Max buckets.
    """

    __slots__ = ("_max_buckets", "full_at")

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self.full_at: dict[str, float] = {}
        self._max_buckets = max_buckets

    def __len__(self) -> int:
        return len(self.full_at)

    def peek(self, name: str, rate: Rate, now: float) -> TokenBucket:
        """Returns the state of a bucket after another request, without counting one.

        If that request would have to wait for a token, it returns the present state with the wait.
        """
        seconds_to_full = max(self.full_at.get(name, now) - now, 0.0)
        after = seconds_to_full + 1 / rate.rate
        wait = after - rate.burst / rate.rate
        # Rounding errors may add up to a billionth.
        if wait > 1e-9:  # noqa: PLR2004 - said above
            return TokenBucket(0, seconds_to_full, wait)
        return TokenBucket(int((rate.burst / rate.rate - after) * rate.rate + 1e-6), after, 0.0)

    def take(self, name: str, bucket: TokenBucket, now: float) -> None:
        """Keeps the state that :meth:`peek` has returned, so that the request counts."""
        if len(self.full_at) >= self._max_buckets and name not in self.full_at:
            for dropped in sorted(self.full_at, key=self.full_at.__getitem__)[: -(-self._max_buckets // 4)]:
                del self.full_at[dropped]
        self.full_at[name] = now + bucket.seconds_to_full


class RateLimits:
    """The buckets of a process. Used in one thread.

    Args:
        rates: The setting.
        clock: The monotonic clock, in seconds.
        max_buckets: Max buckets of each kind.
    """

    def __init__(self, rates: Rates, *, clock: Callable[[], float] = monotonic, max_buckets: int = MAX_BUCKETS) -> None:
        self._rates = rates
        self.clock = clock
        self.buckets = {"application": Buckets(max_buckets), "user": Buckets(max_buckets)}

    def count(self, caller: Caller, application: str) -> tuple[tuple[Header, ...], TooManyRequests | None]:
        """Counts a request, for the caller's applications and, if it is a user, for that user.

        Args:
            caller: The caller of the request.
            application: The application in the path, whether it exists or not.

        Returns:
            Headers with the tightest bucket of each kind, and an error if the caller has exceeded a limit. Then
            no token is taken from any bucket.
        """
        now = self.clock()
        counted: list[_CountedRate] = []
        for name, users in _users_by_counted_application(caller, application).items():
            rates = self._rates.for_application(name)
            if rates.user:
                for user in users:
                    self._add_rate(counted, "user", user, Rate(*rates.rate_and_burst("user")), now)
            if rates.application:
                self._add_rate(counted, "application", name, Rate(*rates.rate_and_burst("application")), now)
        counted.sort(key=lambda c: (-c.bucket.seconds_to_token, c.bucket.tokens_left))
        least = {c.kind: c for c in reversed(counted)}
        headers = _make_headers([least[kind] for kind in ("user", "application") if kind in least])
        if counted and counted[0].bucket.seconds_to_token:
            return headers, _make_refusal(counted[0])
        for c in counted:
            self.buckets[c.kind].take(c.name, c.bucket, now)
        return headers, None

    def _add_rate(self, counted: list[_CountedRate], kind: str, name: str, rate: Rate, now: float) -> None:
        counted.append(_CountedRate(kind, name, rate, self.buckets[kind].peek(name, rate, now)))


def _users_by_counted_application(caller: Caller, application: str) -> dict[str, list[str]]:
    """Returns the applications that a request counts for, each with the caller's user names in it.

    Adding a credential to a request does not make it count for fewer. An application's own requests count for it
    wherever they go, because other applications' queues may name it. Users and limited keys have rights only on queues
    of their own application, so they count there; a request to an application that the caller does not belong to counts
    for all.
    """
    owner = owner_name("")
    owners = {name.removeprefix(owner) for name in caller.names if name.startswith(owner)}
    users = {name: application_of_scoped_name(name) for name in caller.names if not name.startswith(owner)}
    others = {*users.values(), *(grant.application or OPERATORS for grant in caller.grants)}
    if application in owners | others:
        others &= {application, OPERATORS}
    return {app: [name for name, of in users.items() if of == app] for app in sorted(owners | others)}


def _make_headers(tightest: list[_CountedRate]) -> tuple[Header, ...]:
    if not tightest:
        return ()
    policies = (f'"{kind}";q={rate.burst};w={math.ceil(rate.burst / rate.rate)}' for kind, _, rate, _ in tightest)
    states = (
        f'"{kind}";r={bucket.tokens_left};t={math.ceil(bucket.seconds_to_full)}' for kind, _, _, bucket in tightest
    )
    return (("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(states)))


def _make_refusal(limit: _CountedRate) -> TooManyRequests:
    seconds = math.ceil(limit.bucket.seconds_to_token)
    error = TooManyRequests(
        f"Too many requests of this {limit.kind}: it may make {limit.rate.rate:g} a second, {limit.rate.burst} at once."
        f" Try again after {seconds} s."
    )
    error.retry_after = seconds
    return error


class NamedRateLimiter:
    """A rate limit for each of many names in this process.

    Args:
        rate: The limit of each name.
        text: What is counted, as in ``logins of this key``.
    """

    def __init__(self, rate: Rate, text: str) -> None:
        self._rate = rate
        self._text = text
        self.clock = monotonic
        self._lock = threading.Lock()
        self.buckets = Buckets(MAX_COUNTED)

    def take(self, name: str) -> None:
        """Counts one event of a name.

        Raises:
            TooManyRequests: The name has exceeded the limit.
        """
        self._count(name, takes=True)

    def require_token(self, name: str) -> None:
        self._count(name, takes=False)

    def _count(self, name: str, *, takes: bool) -> None:
        with self._lock:
            now = self.clock()
            bucket = self.buckets.peek(name, self._rate, now)
            if not bucket.seconds_to_token:
                if takes:
                    self.buckets.take(name, bucket, now)
                return
        error = TooManyRequests(f"Too many {self._text}. Try again after {math.ceil(bucket.seconds_to_token)} s.")
        error.retry_after = math.ceil(bucket.seconds_to_token)
        raise error
