"""A named post while others post the same name and workers claim: one message of it waits or runs at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from queuey.errors import NameTaken, StoreBusy
from queuey.ids import Position
from queuey.service import Draft, QueueAccess
from queuey.storage import Store
from tests.blocking import BlockingNames, blocking
from tests.contract.claims.test_names import enter
from tests.contract.samples import make_queue

POSTS = 20


def test_senders_race_with_a_worker(store: Store, other: Store) -> None:
    """Two processes post under a name while a worker claims: no two messages at once, and none is lost or doubled."""
    queue = make_queue(store, partitions=2)
    (one, access, names), (two, there, elsewhere) = enter(store, queue), enter(other, queue)
    stored: list[Position] = []
    delivered: list[Position] = []
    ended = threading.Event()

    def send(way: QueueAccess, those: BlockingNames, who: str) -> None:
        for number in range(POSTS):
            with suppress(NameTaken, StoreBusy):
                found = those.create(way, "n", Draft(f"{who} {number}"))
                if found.stored and found.location is not None:
                    stored.append(found.location[1])

    def work() -> None:
        while not ended.is_set() or set(stored) - set(delivered):
            held = blocking(one.claims).claim(access, limit=10, ttl=60, gather=True)
            if held:
                held += blocking(two.claims).claim(there, limit=10, ttl=60, gather=True)
                assert len(held) == 1, "two messages of a name at once"
                delivered.extend(each.message.position for each in held)
                blocking(one.claims).acknowledge(access, [each.receipt for each in held])

    with ThreadPoolExecutor(3) as threads:
        worker = threads.submit(work)
        senders = [threads.submit(send, access, names, "ann"), threads.submit(send, there, elsewhere, "bob")]
        try:
            for sender in senders:
                sender.result(60)
        finally:
            ended.set()
        worker.result(60)
    assert len(stored) > 1
    assert sorted(delivered) == sorted(stored)
