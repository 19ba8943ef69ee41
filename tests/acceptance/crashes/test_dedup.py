"""A dedup queue while services are killed with -9: no post is forgotten, and copies that waited are done together."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pytest

from queuey import ids
from queuey.client import Client, Outgoing
from tests.acceptance.crashes.conftest import APP, KEY, PATIENT, Start, kill_often
from tests.servers.served import free_port

QUEUE, PARTITIONS, CALLERS, WORKERS, BODIES = "pages", 2, 3, 2, 40
TTL = 5
"""Seconds of a claim: one whose answer was lost is delivered again soon."""
RECENT = 2.0
"""Seconds for which a copy may have waited and be delivered nevertheless."""


class Done(NamedTuple):
    """A message that was delivered and acknowledged: when that request for messages began and was answered."""

    body: str
    posted: float
    began: float
    answered: float
    deliveries: int


@dataclass
class Answers:
    """What callers were told; times are seconds since 1970.

    Attributes:
        posted: When the last post of each body began that was answered.
        posts: How many messages were posted.
        done: When a message with each body was acknowledged last.
        all_done: Every acknowledged message.
    """

    posted: dict[str, float] = field(default_factory=dict)
    posts: int = 0
    done: dict[str, float] = field(default_factory=dict)
    all_done: list[Done] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def post(self, bodies: list[str], began: float) -> None:
        """Notes a post that was answered."""
        with self.lock:
            self.posts += len(bodies)
            for body in bodies:
                self.posted[body] = max(began, self.posted.get(body, 0.0))

    def acknowledge(self, done: Done) -> None:
        """Notes an acknowledgement that was answered."""
        with self.lock:
            self.all_done.append(done)
            self.done[done.body] = time.time()

    def waiting(self) -> set[str]:
        """Returns the bodies of which no message was done after their last post began."""
        with self.lock:
            return {body for body, began in self.posted.items() if self.done.get(body, 0.0) < began}


def post_often(urls: list[str], caller: int, answers: Answers, ended: threading.Event) -> None:
    """Posts the same bodies again and again."""
    rng = random.Random(caller)
    with Client(urls, key=KEY, application=APP, retry=PATIENT, timeout=20) as client:
        while not ended.is_set():
            bodies = [f"page {rng.randrange(BODIES)}" for _ in range(10)]
            began = time.time()
            client.send_many(QUEUE, [Outgoing(body) for body in bodies])
            answers.post(bodies, began)
            time.sleep(0.1)


def work(urls: list[str], answers: Answers, ended: threading.Event) -> None:
    """Claims messages, takes some time, and acknowledges them; at the end, until nothing waits."""
    with Client(urls, key=KEY, application=APP, retry=PATIENT, timeout=20) as client:
        jobs, last = client.job_queue(QUEUE), None
        while not ended.is_set() or answers.waiting():
            if ended.is_set():
                last = last or time.monotonic()
                assert time.monotonic() < last + 120, f"not delivered: {answers.waiting()}"
            began = time.time()
            given = jobs.receive(limit=3, wait=1, ttl=TTL)
            answered = time.time()
            for claimed in given:
                time.sleep(0.05)
                if not jobs.ack(claimed):
                    message = claimed.message
                    posted = ids.ticks_to_seconds(ids.parse_id(message.id)[0])
                    answers.acknowledge(Done(str(message.body), posted, began, answered, claimed.deliveries))


def needless(answers: Answers) -> list[tuple[Done, Done]]:
    """Returns pairs of equal messages that were both delivered, although the second one waited beside the first.

    Of one that was delivered twice, nobody knows when that was for the first time: its request was not answered.
    """
    first = [done for done in answers.all_done if done.deliveries == 1]
    return [
        (one, other)
        for one in first
        for other in first
        if one.body == other.body and one.answered < other.began and other.posted + RECENT < one.began
    ]


def run(start: Start, *, kills: int, seed: int) -> None:
    """Kills one of two services again and again while callers post and others work; then compares what was done."""
    with ExitStack() as stack:
        running = {port: stack.enter_context(start(port)) for port in (free_port(), free_port())}
        urls = [f"http://127.0.0.1:{port}" for port in running]
        client = stack.enter_context(Client(urls, key=KEY, application=APP, retry=PATIENT))
        client.create_queue(QUEUE, partitions=PARTITIONS, kind="dedup")
        answers = Answers()
        calls = [partial(post_often, urls, caller, answers) for caller in range(CALLERS)]
        calls += [partial(work, urls, answers) for _ in range(WORKERS)]
        kill_often(stack, start, running, calls, answers.all_done, kills=kills, rng=random.Random(seed))
        assert needless(answers) == []
        assert len(answers.all_done) < answers.posts


@pytest.mark.slow
def test_many_killed_services(start: Start) -> None:
    """Whatever a service was doing when it died: each body is done after its last post, and once for what waited."""
    run(start, kills=20, seed=random.randrange(1 << 30))
