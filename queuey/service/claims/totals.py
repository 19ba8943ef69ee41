"""Counters of claims in a process, for operators."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from queuey.claims import Entry, ReceiptStatus, State
from queuey.service.claims.requests import Request, SettleRequest


class ClaimTotals:
    """Counters of all logs of a process. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._appends = self._refused = self._operations = self._forwarded = 0
        self._delivered = self._redelivered = self._acknowledged = self._superseded = 0

    def refused(self) -> None:
        """Counts an append that another process was ahead of."""
        with self._lock:
            self._refused += 1

    def forwarded(self) -> None:
        """Counts a request that another worker was asked for."""
        with self._lock:
            self._forwarded += 1

    def ended(self, requests: Sequence[Request], entry: Entry | None, state: State) -> None:
        """Counts a round: its requests, its entry, and the state after that."""
        settled = [
            (request.kind, one.status)
            for request in requests
            if isinstance(request, SettleRequest) and request.settled
            for one in request.settled
        ]
        acknowledged = settled.count(("acknowledge", ReceiptStatus.DONE))
        superseded = sum(status is ReceiptStatus.SUPERSEDED for _, status in settled)
        places = [place for _, some in entry.claims for place in some] if entry is not None else []
        claims = [state.outstanding.get(place) for place in places]
        again = sum(claim is not None and claim.deliveries > 1 for claim in claims)
        with self._lock:
            self._acknowledged += acknowledged
            self._superseded += superseded
            self._delivered += len(places)
            self._redelivered += again
            if entry is not None:
                self._appends += 1
                self._operations += len(requests)

    def statistics(self) -> dict[str, float]:
        with self._lock:
            return {
                "claims_delivered_total": self._delivered,
                "claims_redelivered_total": self._redelivered,
                "claims_acknowledged_total": self._acknowledged,
                "claims_superseded_total": self._superseded,
                "claims_appends_total": self._appends,
                "claims_appends_refused_total": self._refused,
                "claims_operations_total": self._operations,
                "claims_forwarded_total": self._forwarded,
            }
