"""Writers and all kinds of consumers, each in a thread. A thread that fails is a violation."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from queuey.client import EARLIEST, Client, ClientError, RetryPolicy
from tests.soak.handler import number_of
from tests.soak.ledger import Ledger

APPLICATION, KEY, QUEUE, GROUP = "soak", "5" * 64, "feed", "crew"
PATIENT = RetryPolicy(base=0.05, cap=1, retry_after_cap=1, deadline=300, cool_down=2)
"""Retries until a service is back."""
READER, POLLER, CLAIMERS, WORKERS = "read by time", "long poll", "claims", "qdo workers"
SIZES = (1, 1, 5, 20)
"""Choices of the number of messages in a post."""
PAUSE = (0.1, 0.5)
"""Range of seconds between two posts of a writer."""
TTL = 900
CLAIM_TTL = 10.0
END_SECONDS = 330.0
"""Max seconds until a thread ends. Longer than a client retries."""
MISTAKES = 0.01
"""Fraction of jobs at which a claimer gives up, so that they are delivered again."""
PADDING = "x" * 180


class Traffic:
    """The traffic at one store.

    Args:
        urls: The services. The threads prefer one of them in turn.
        records: The files in which Qdo workers record handled messages.
        seed: Seeds what writers send and when.
    """

    def __init__(self, store: str, urls: Sequence[str], records: Sequence[Path], seed: int) -> None:
        self.store = store
        self.ledger = Ledger((READER, POLLER), (CLAIMERS, WORKERS), may_move=store == "cassandra")
        self.failures: list[str] = []
        self._urls = urls
        self._records = dict.fromkeys(records, 0)
        self._rng = random.Random(f"{seed} {store}")
        self._writing_ended, self._ended = threading.Event(), threading.Event()
        self._writers = [self._make_thread(f"writer {at}", self._write, at) for at in range(2)]
        self._consumers = [
            self._make_thread(READER, self._read, 0),
            self._make_thread(POLLER, self._poll, 1),
            self._make_thread("claimer 0", self._claim, 0),
            self._make_thread("claimer 1", self._claim, 1),
            self._make_thread("records", self._follow_records, 0),
        ]

    def client(self, preferred: int = 0) -> Client:
        urls = [*self._urls[preferred:], *self._urls[:preferred]]
        return Client(urls, key=KEY, application=APPLICATION, retry=PATIENT)

    def start(self) -> None:
        for thread in (*self._writers, *self._consumers):
            thread.start()

    def end_writers(self) -> None:
        self._writing_ended.set()
        for thread in self._writers:
            thread.join(END_SECONDS)

    def end(self) -> None:
        self._ended.set()
        for thread in self._consumers:
            thread.join(END_SECONDS)

    def count_remaining(self) -> dict[str, int]:
        with self.client() as client:
            size, lag = client.job_queue(QUEUE).size().size, client.offsets(QUEUE, GROUP).lag
        return {f"{CLAIMERS} to be acknowledged": size, f"{WORKERS} to be committed": lag}

    def _make_thread(self, name: str, work: Callable[[Client, int], None], preferred: int) -> threading.Thread:
        """Returns a thread that does work with its own client. An error is recorded as a failure."""

        def run() -> None:
            try:
                with self.client(preferred) as client:
                    work(client, preferred)
            except Exception as error:  # noqa: BLE001 - it is reported in the end
                self.failures.append(f"{self.store}: {name} failed: {error!r}")

        return threading.Thread(target=run, name=f"{self.store} {name}", daemon=True)

    def _write(self, client: Client, which: int) -> None:
        """Sends numbered messages until writers end. Those with unknown outcomes may or may not be stored."""
        numbers = itertools.count(which, 2)
        while not self._writing_ended.wait(self._rng.uniform(*PAUSE)):
            batch = list(itertools.islice(numbers, self._rng.choice(SIZES)))
            try:
                client.send_many(QUEUE, [f"{number} {PADDING}" for number in batch])
            except ClientError as error:
                if getattr(error, "outcome", None) != "unknown":
                    raise
                self.ledger.record_unknown(batch)
            else:
                self.ledger.acknowledge(batch)

    def _read(self, client: Client, _: int) -> None:
        cursor = EARLIEST
        while not self._ended.is_set():
            page = client.read(QUEUE, since=cursor, limit=500)
            self.ledger.record_shown(READER, ((number_of(message.body), message.id) for message in page.messages))
            cursor = page.cursor
            if not page.more:
                self._ended.wait(0.5)

    def _poll(self, client: Client, _: int) -> None:
        for page in client.tail_pages(QUEUE, since=EARLIEST, wait=2):
            self.ledger.record_shown(POLLER, ((number_of(message.body), message.id) for message in page.messages))
            if self._ended.is_set():
                return

    def _claim(self, client: Client, _: int) -> None:
        """Claims and acknowledges messages. Sometimes stops in the middle of a batch, so that messages come again."""
        while not self._ended.is_set():
            for job in client.job_queue(QUEUE).claim(limit=20, ttl=CLAIM_TTL, idle=2):
                if self._rng.random() < MISTAKES:
                    break
                self.ledger.record_received(CLAIMERS, [number_of(job.body)])

    def _follow_records(self, _: Client, __: int) -> None:
        while not self._ended.wait(0.5):
            for path, offset in self._records.items():
                if path.exists():
                    with path.open("rb") as lines:
                        lines.seek(offset)
                        text = lines.read()
                    whole = text[: text.rfind(b"\n") + 1]
                    self._records[path] = offset + len(whole)
                    self.ledger.record_received(WORKERS, map(int, whole.split()))
