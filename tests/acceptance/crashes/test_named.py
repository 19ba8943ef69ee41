"""Named messages after kill -9 of a service: a reader by time is shown one value of each name, the newest possible."""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from queuey.client import Client, ClientError, RetryPolicy
from tests.acceptance.crashes.conftest import APP, KEY, Start, kills_of, serving
from tests.harness.history import running
from tests.servers.served import free_port
from tests.waiting import until

QUEUE, PARTITIONS, NAMES = "tasks", 2, 6
ONCE = RetryPolicy(deadline=0)


class SentValues(NamedTuple):
    """For each name the last number that was sent, and the last one that was answered."""

    sent: dict[str, int]
    answered: dict[str, int]


def set_until_killed(url: str, name: str, said: SentValues, killed: threading.Event) -> None:
    with Client(url, key=KEY, application=APP, retry=ONCE, timeout=20) as client:
        for number in itertools.count(1):
            if killed.is_set():
                return
            said.sent[name] = number
            with suppress(ClientError):
                client.named(QUEUE).set(name, f"{name}:{number}")
                said.answered[name] = number


def read(client: Client) -> set[str]:
    """Reads by time, without names; at most one value of a name may be shown."""
    bodies = [str(message.body) for message in client.read_all(QUEUE, partitions="*", since=0)]
    names = [body.partition(":")[0] for body in bodies]
    assert len(names) == len(set(names)), f"{sorted(bodies)} is shown"
    return set(bodies)


def read_after_kills(start: Start, *, kills: int, seed: int) -> None:
    """Fails unless each name shows a value between the last one answered and the last one sent before the kill."""
    rng, port, said, shown = random.Random(seed), free_port(), SentValues({}, {}), set[str]()
    with serving(start, 1) as services, ExitStack() as stack:
        client = services.client
        client.create_queue(QUEUE, partitions=PARTITIONS)
        for number in range(kills):
            service = stack.enter_context(start(port))
            names = [f"n{number}-{each}" for each in range(NAMES)]
            with running([partial(set_until_killed, f"http://127.0.0.1:{port}", name, said) for name in names]):
                until(lambda names=names: all(said.answered.get(name, 0) > 1 for name in names))  # type: ignore[misc]
                time.sleep(rng.random() * 0.1)  # the moment of the kill is the input
                service.kill()
            client.send(QUEUE, last := f"kill{number}:")
            until(lambda last=last: last in read(client))  # type: ignore[misc]
            shown = read(client)
            for name in names:
                possible = {f"{name}:{each}" for each in range(said.answered[name], said.sent[name] + 1)}
                assert possible & shown, f"none of {sorted(possible)} is shown"
        by_name = {str(message.body) for name in said.sent if (message := client.named(QUEUE).get(name)) is not None}
        assert by_name == {body for body in shown if not body.startswith("kill")}


@kills_of(1, 10)
def test_readers_after_kills(start: Start, kills: int, seed: int) -> None:
    """A reader by time gets one value of a name, although no call has used the name since its writer was killed."""
    read_after_kills(start, kills=kills, seed=seed)
