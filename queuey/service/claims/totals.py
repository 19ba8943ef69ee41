"""Counters of claims in a process, for operators."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from queuey.claims import Entry, ReceiptStatus, State
from queuey.service.claims.requests import Request, SettleRequest


class ClaimTotals:
    """Counters of all logs of a process, by the names of their metrics. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("appends", "appends_refused", "operations", "forwarded"), 0)
        self._counts |= dict.fromkeys(("delivered", "redelivered", "acknowledged", "superseded"), 0)

    def refused(self) -> None:
        """Counts an append that another process was ahead of."""
        with self._lock:
            self._counts["appends_refused"] += 1

    def forwarded(self) -> None:
        """Counts a request that another worker was asked for."""
        with self._lock:
            self._counts["forwarded"] += 1

    def ended(self, requests: Sequence[Request], entry: Entry | None, state: State) -> None:
        """Counts a round: its requests, its entry, and the state after that."""
        counts = self._counts
        with self._lock:
            for request in requests:
                if isinstance(request, SettleRequest):
                    for one in request.settled:
                        counts["acknowledged"] += one.status is ReceiptStatus.DONE and request.kind == "acknowledge"
                        counts["superseded"] += one.status is ReceiptStatus.SUPERSEDED
            if entry is None:
                return
            counts["appends"] += 1
            counts["operations"] += len(requests)
            for _, positions in entry.claims:
                counts["delivered"] += len(positions)
                for position in positions:
                    claim = state.outstanding.get(position)
                    counts["redelivered"] += claim is not None and claim.deliveries > 1

    def statistics(self) -> dict[str, float]:
        with self._lock:
            return {f"claims_{name}_total": count for name, count in self._counts.items()}
