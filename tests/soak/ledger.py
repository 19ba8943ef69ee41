"""The acknowledged messages that each consumer has yet to see. Memory grows with the lag, not with the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Lag(NamedTuple):
    """How far a consumer is behind the acknowledgements: messages, and the age of the oldest in seconds."""

    messages: int
    seconds: float


class _Account:
    """The account of one consumer."""

    def __init__(self) -> None:
        self.due: dict[int, float] = {}
        self.early = set[int]()
        self.seen = 0
        self.ids: dict[int, set[str]] = {}
        self.moved = 0


class Ledger:
    """Tracks numbered messages from their acknowledgement until each consumer has seen them.

    Args:
        once: Consumers that see each message exactly once.
        often: Consumers that may see a message again.
        clock: Seconds.
        may_move: A repeated post moves a message to a new id if a service was killed after its write and before its
            confirmation, as on Cassandra. A consumer that was quicker sees it under both ids.
    """

    def __init__(
        self,
        once: Iterable[str],
        often: Iterable[str],
        clock: Callable[[], float] = time.monotonic,
        *,
        may_move: bool = False,
    ) -> None:
        self._once = frozenset(once)
        self._may_move = may_move
        self._accounts = {name: _Account() for name in (*self._once, *often)}
        self._clock = clock
        self._unknown = set[int]()
        self._lock = threading.Lock()
        self.acknowledged = 0

    def acknowledge(self, numbers: Iterable[int]) -> None:
        """Records messages that the service acknowledged: due for each consumer that has not yet seen them."""
        with self._lock:
            now, numbers = self._clock(), set(numbers)
            self.acknowledged += len(numbers)
            for account in self._accounts.values():
                account.due |= dict.fromkeys(numbers - account.early, now)
                account.early -= numbers

    def record_unknown(self, numbers: Iterable[int]) -> None:
        with self._lock:
            self._unknown |= set(numbers)

    def record_shown(self, name: str, messages: Iterable[tuple[int, str]]) -> None:
        """Records messages as :meth:`record_received`, but, if messages may move, none again under a new id."""
        if self._may_move:
            with self._lock:
                messages = [shown for shown in messages if not self._has_moved(self._accounts[name], *shown)]
        self.record_received(name, (number for number, _ in messages))

    def _has_moved(self, account: _Account, number: int, identifier: str) -> bool:
        """Records the id of a shown message. Returns whether the message was only shown under others before."""
        known = account.ids.setdefault(number, set())
        has_moved = bool(known) and identifier not in known
        account.moved += has_moved
        known.add(identifier)
        return has_moved

    def record_received(self, name: str, numbers: Iterable[int]) -> None:
        """Records messages that a consumer received. Those not due count as early: not acknowledged, or seen before."""
        with self._lock:
            account = self._accounts[name]
            for number in numbers:
                account.seen += 1
                if account.due.pop(number, None) is None:
                    account.early.add(number)

    def lags(self) -> dict[str, Lag]:
        """Returns how many messages each consumer has not seen, and the seconds since the oldest was due."""
        with self._lock:
            now = self._clock()
            return {
                name: Lag(len(account.due), now - next(iter(account.due.values()), now))
                for name, account in self._accounts.items()
            }

    def seen(self) -> dict[str, int]:
        return {name: account.seen for name, account in self._accounts.items()}

    def moved(self) -> dict[str, int]:
        """Returns how many messages each consumer saw again under a new id."""
        return {name: account.moved for name, account in self._accounts.items()}

    def violations(self) -> list[str]:
        """Returns messages never seen and, for consumers that must see each once, messages seen twice or early."""
        problems = []
        for name, account in sorted(self._accounts.items()):
            if account.due:
                problems.append(
                    f"{name} never saw {len(account.due)} acknowledged messages: {_render_lowest(account.due)}"
                )
            wrong = account.early - self._unknown
            if name in self._once and wrong:
                problems.append(f"{name} saw {len(wrong)} messages twice or unacknowledged: {_render_lowest(wrong)}")
        return problems


def _render_lowest(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)[:8]))
