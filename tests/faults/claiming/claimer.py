"""Clients that claim messages, and acknowledge, renew, release or abandon them. Each records what it saw."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from queuey.model import ids
from tests.faults.wire import Account, Answer, Line, NotSent, Unanswered, Web
from tests.faults.workload import HASTE, PATIENCE
from tests.harness.checking.claims import Acknowledgement, ClaimHistory, Delivery, Outcome
from tests.harness.history import now

TTLS = (2.0, 4.0)
"""Durations of claims, in seconds."""
REST = 0.8
"""Max seconds between the end of a client's work and its next claim. Leaves the machine time for others."""
HASTY = 0.05
"""Fraction of requests that are given up early."""
LOST_STATUS = 409

Job = tuple[Delivery, str]
"""A message and its receipt."""


@dataclass(eq=False)
class Claimer:
    """One client with a connection to each web process. It sends each request to one of them.

    Args:
        webs: The web processes.
        account: The credential of the requests.
        queue: The queue to claim from.
        history: The records, shared by several clients.
        lock: Guards the history.
        calm: Returns whether the faults are over. Then everything is acknowledged.
        rng: Decides what it does.
    """

    webs: Sequence[Web]
    account: Account
    queue: str
    history: ClaimHistory
    lock: threading.Lock
    calm: Callable[[], bool]
    rng: random.Random

    def __post_init__(self) -> None:
        self._lines = [Line(web, self.account) for web in self.webs]
        self.empty_for = -1.0
        """Seconds from the first to the last claim of the latest empty ones in a row. Negative if there are none."""
        self._empty_since: float | None = None

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            jobs = self._claim()
            if jobs:
                self._handle(jobs, stop)
            stop.wait(self.rng.uniform(0.0, REST))
        for line in self._lines:
            line.close()

    def _claim(self) -> list[Job]:
        """Claims once, records the deliveries and returns them with their receipts.

        Also records for how long claims have been empty; a claim that failed ends such a time.
        """
        ttl, limit = self.rng.choice(TTLS), self.rng.choice((1, 5, 20))
        asked = now()
        answer = self._ask("", query=f"?limit={limit}&ttl={ttl}&wait={self.rng.choice((0, 0, 1))}")
        answered = now()
        messages = answer.content["messages"] if answer is not None and answer.status == 200 else None
        if messages == []:
            self._empty_since = asked if self._empty_since is None else self._empty_since
            self.empty_for = asked - self._empty_since
        else:
            self._empty_since, self.empty_for = None, -1.0
        if messages is None:
            return []
        return [self._record_delivery(message, ttl, asked, answered) for message in messages]

    def _record_delivery(self, message: Mapping[str, Any], ttl: float, asked: float, answered: float) -> Job:
        receipt: str = message["receipt"]
        number = int(receipt.split("-")[2])
        lives = _known_life(message["expires"], ttl, asked, answered)
        delivery = Delivery(ids.parse_position(message["message_id"]), number, asked, answered, lives)
        with self.lock:
            self.history.deliveries.append(delivery)
        return delivery, receipt

    def _handle(self, jobs: list[Job], stop: threading.Event) -> None:
        """Acknowledges in time, renews, releases, acknowledges late, or abandons; when calm, acknowledges at once."""
        mood = 0.0 if self.calm() else self.rng.random()
        if mood < 0.6:
            stop.wait(0.0 if self.calm() else self.rng.uniform(0.0, 0.3))
            self._acknowledge(jobs)
        elif mood < 0.75:
            stop.wait(self.rng.uniform(0.0, 1.5))
            self._renew(jobs)
            stop.wait(self.rng.uniform(0.0, 1.5))
            self._acknowledge(jobs)
        elif mood < 0.85:
            self._release(jobs)
        elif mood < 0.93:
            # Usually too late: other clients may have them by then.
            stop.wait(self.rng.uniform(1.5, 6.0))
            self._acknowledge(jobs)

    def _acknowledge(self, jobs: list[Job]) -> None:
        """Acknowledges messages once. The claims count as ended from the request on, whatever the answer."""
        asked = now()
        sent = [Acknowledgement(delivery.position, asked) for delivery, _ in jobs]
        with self.lock:
            self.history.acknowledgements += sent
            for delivery, _ in jobs:
                delivery.dropped = min(asked, delivery.dropped or asked)
        outcomes = self._send_receipts("/ack", jobs)
        with self.lock:
            for acknowledgement, outcome in zip(sent, outcomes, strict=True):
                acknowledgement.answered, acknowledgement.outcome = now(), outcome

    def _release(self, jobs: list[Job]) -> None:
        """Releases messages once. The claims count as ended from the request on, whatever the answer."""
        with self.lock:
            for delivery, _ in jobs:
                delivery.dropped = now()
        self._send_receipts("/release", jobs, delay=self.rng.choice((0.0, 1.0)))

    def _renew(self, jobs: list[Job]) -> None:
        """Renews claims. Records the longer time only of those that were renewed."""
        ttl, asked = self.rng.choice(TTLS), now()
        answer = self._ask("/renew", self._receipts(jobs) | {"ttl": ttl})
        answered = now()
        if answer is None or answer.status not in {200, LOST_STATUS}:
            return
        with self.lock:
            for (delivery, _), result in zip(jobs, answer.content["results"], strict=True):
                if result["status"] == "ok" and "expires" in result:
                    delivery.lives += _known_life(result["expires"], ttl, asked, answered)

    def _send_receipts(self, what: str, jobs: list[Job], **fields: float) -> list[Outcome]:
        """Sends a request about jobs and returns their outcomes, which are empty without an answer."""
        answer = self._ask(what, self._receipts(jobs) | fields)
        if answer is None:
            return [""] * len(jobs)
        if answer.status in {200, LOST_STATUS}:
            words: dict[str, Outcome] = {"ok": "done", "superseded": "superseded"}
            return [words[result["status"]] for result in answer.content["results"]]
        assert answer.status == 503, answer
        return [cast("Outcome", answer.content.get("outcome", "unknown"))] * len(jobs)

    def _receipts(self, jobs: list[Job]) -> dict[str, Any]:
        return {"receipts": [receipt for _, receipt in jobs]}

    def _ask(self, what: str, body: Mapping[str, Any] | None = None, query: str = "") -> Answer | None:
        """Sends a request to a random web process that listens. Returns None if no answer came.

        Some requests are given up early, unless the faults are over.
        """
        timeout = self.rng.uniform(*HASTE) if self.rng.random() < HASTY and not self.calm() else PATIENCE
        path, data = f"/{self.queue}/claims{what}{query}", None if body is None else json.dumps(body).encode()
        for line in self.rng.sample(self._lines, len(self._lines)):
            try:
                return line.ask("POST", path, body=data, headers={"Content-Type": "application/json"}, timeout=timeout)
            except NotSent:
                continue
            except Unanswered:
                return None
        return None


def _known_life(expires: float, ttl: float, asked: float, answered: float) -> list[tuple[float, float]]:
    """Returns the time for which a client knows that it has a claim.

    A process may be stopped between reading its clock and the answer. So a client counts from its request: once ``ttl``
    has passed since then, it knows nothing. ``expires`` of a renewal may be later, as a renewal never shortens a claim.
    """
    end = expires - _wall_clock_lead()
    return [] if end <= answered >= asked + ttl else [(answered, end)]


def _wall_clock_lead() -> float:
    """Returns by how many seconds the wall clock, shared by all processes here, is ahead of the histories' clock."""
    return time.time() - now()
