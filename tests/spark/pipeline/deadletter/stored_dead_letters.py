"""Queues with dead letters, as workers leave them."""

from __future__ import annotations

from typing import NamedTuple

from queuey import ids
from queuey.deadletters import Cause, make_headers
from queuey.messages import Message, Meta, NewMessage, Queue, QueueSpec, Slice
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.spark.kept import Kept

TTL = 3600
AGE = 600 * ids.TICKS_PER_SECOND
"""Partitions of the messages that have died."""


class Grave(NamedTuple):
    """A queue and its queue of dead letters."""

    queue: Queue
    dead: Queue


def grave(store: Store, name: str, partitions: int = 2) -> Grave:
    made = [
        bridge.run(store.catalogue.create_queue(APP, each, QueueSpec(partitions=partitions)))[0]
        for each in (name, f"{name}.dead")
    ]
    return Grave(*made)


def bury(store: Store, dead: Queue, name: str, causes: list[Cause], *, json: bool = False) -> list[Message]:
    """Stores one dead letter of queue `name` for each cause, and returns them as read."""
    dead_letters = []
    for number, cause in enumerate(causes):
        position = ids.now_ticks() - AGE + number, 7
        partition = number % dead.partitions + 1
        kind = "application/json" if json else None
        headers = {"trace": f"t{number}"}
        place = name, partition, ids.to_hex(position)
        body = f'{{"n":{number}}}' if json else f"body {number}"
        meta = Meta(kind, tuple(make_headers(place, kind, headers, cause).items()), json)
        bridge.run(store.messages.put(dead, [(partition, position)], NewMessage(body, partition, TTL, meta)))
        dead_letters += bridge.run(store.messages.fetch(dead, [(partition, position)]))
    return dead_letters


def read_all(store: Store, queue: Queue) -> list[Message]:
    queue = bridge.run(store.catalogue.queue(queue.application, queue.name, fresh=True))
    return [
        message
        for number in range(1, queue.partitions + 1)
        for page in bridge.iterate(store.bulk.scan(queue, Slice(number)))
        for message in page
    ]


def settle_and_read(kept: Kept, queue: Queue) -> list[Message]:
    _, infos = bridge.run(kept.store.messages.inspect(queue))
    newest = [info.newest for info in infos if info.newest is not None]
    if newest:
        kept.settle(queue, max(newest))
    return kept.all(queue)
