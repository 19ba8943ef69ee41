"""Handlers of jobs of which one ends its process, for ``qdo work``; and loops of the client, run with their name."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from qdo.worker.handlers import delivery
from queuey.client import Client, Message
from tests.qdo.worker import hands

POISON = "50"


def handle(message: Message, _context: Any = None) -> None:  # noqa: ANN401 - not used
    end_if_poison(message.body, delivery().attempt)


def end_if_poison(body: str | bytes, attempt: int) -> None:
    """Records an attempt; the one at the poison ends the process at once."""
    hands.note(f"{body!s} {attempt}")
    if body == POISON:
        os._exit(9)
    time.sleep(0.001)


def loop(client: Client, queue: str) -> None:
    client.job_queue(queue).run(lambda job: end_if_poison(job.body, job.deliveries), limit=100, ttl=2)


def receive(client: Client, queue: str) -> None:
    """Claims by hand, and acknowledges what it claimed once all of it is done."""
    while True:
        claimed = client.job_queue(queue).receive(100, ttl=2, wait=5)
        for held in claimed:
            end_if_poison(held.message.body, held.deliveries)
        client.job_queue(queue).ack(claimed)


if __name__ == "__main__":
    _, way, queue = sys.argv
    with Client() as client:
        {"loop": loop, "receive": receive}[way](client, queue)
