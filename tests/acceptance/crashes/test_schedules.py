"""Schedules while one of two services on a store is killed with -9 again and again: each tick is published once."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack

from tests.acceptance.crashes.conftest import Start, kills_of, serving
from tests.waiting import until

QUEUE, INTERVAL = "ticks", 10
FIRING = 0.6
"""Seconds after an instant in which most of the schedules fire."""


def check_firings_under_kills(start: Start, *, schedules: int, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    with serving(start) as services, ExitStack() as stack:
        client, running = services.client, services.running
        client.create_queue(QUEUE)
        names = [f"s{number}" for number in range(schedules)]
        first = {}
        for name in names:
            made = client.schedules.put(name, queue=QUEUE, message=name, every=INTERVAL, missed="catch_up")
            first[name] = made.next[0]
        for number, port in enumerate((list(running) * kills)[:kills]):
            # The moment of the kill is the input.
            time.sleep(max(0.0, first[names[-1]] + number * INTERVAL + rng.random() * FIRING - time.time()))
            running[port].kill()
            running[port] = stack.enter_context(start(port))
        last_instant = first[names[-1]] + kills * INTERVAL

        def done() -> bool:
            return all(
                each.last is not None and each.last.instant >= last_instant and each.firing is None
                for each in client.schedules.list()
            )

        until(done, 120)
        last = {}
        for name in names:
            paused = client.schedules.pause(name)
            assert paused.last is not None
            assert paused.last.state == "published"
            last[name] = paused.last.instant
        until(lambda: all(each.firing is None for each in client.schedules.list()), 60)
        last |= {each.name: each.last.instant for each in client.schedules.list() if each.last is not None}
        expected = {name: (last[name] - first[name]) / INTERVAL + 1 for name in names}
        time.sleep(client.info(QUEUE).read_delay or 0)
        assert Counter(str(message.body) for message in client.read_all(QUEUE, since=0)) == expected


@kills_of(2, 20)
def test_killed_services(start: Start, kills: int, seed: int) -> None:
    """Whatever a service was doing when it died, the other one finishes it: no tick is lost or doubled."""
    check_firings_under_kills(start, schedules=60, kills=kills, seed=seed)
