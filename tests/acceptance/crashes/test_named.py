"""Named messages while services are killed with -9: the newest value is there, alone, and its holders are told."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from queuey.client import Client
from tests.acceptance.crashes.conftest import APP, KEY, PATIENT, Start
from tests.servers.served import free_port

QUEUE, PARTITIONS, NAMES = "tasks", 2, 3


class Acknowledged(NamedTuple):
    """A value that was acknowledged: its name and number, and when that was begun."""

    name: str
    number: int
    began: float


def call_often(urls: list[str], name: str, ended: threading.Event, answered: dict[tuple[str, int], float]) -> None:
    """Sets a name to one number after another; notes when that was answered."""
    with Client(urls, key=KEY, application=APP, retry=PATIENT, timeout=20) as client:
        number = 0
        while not ended.is_set():
            number += 1
            client.named(QUEUE).set(name, f"{name}:{number}")
            answered[name, number] = time.monotonic()


def work(urls: list[str], ended: threading.Event, done: list[Acknowledged]) -> None:
    """Claims values, takes some time, and acknowledges them."""
    with Client(urls, key=KEY, application=APP, retry=PATIENT, timeout=20) as client:
        jobs, rng = client.job_queue(QUEUE), random.Random(5)
        while not ended.is_set():
            for claimed in jobs.receive(limit=2, wait=1):
                time.sleep(rng.random() * 0.05)
                began = time.monotonic()
                if not jobs.ack(claimed):
                    name, _, number = str(claimed.message.body).partition(":")
                    done.append(Acknowledged(name, int(number), began))


def run(start: Start, *, kills: int, seed: int) -> None:
    """Kills one of two services again and again while callers set names and a worker works; then looks at all."""
    rng, ports = random.Random(seed), [free_port(), free_port()]
    with ExitStack() as stack:
        running = [stack.enter_context(start(port)) for port in ports]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        client = stack.enter_context(Client(urls, key=KEY, application=APP, retry=PATIENT))
        client.create_queue(QUEUE, partitions=PARTITIONS)
        ended, failures = threading.Event(), list[BaseException]()
        answered: dict[tuple[str, int], float] = {}
        done: list[Acknowledged] = []

        def guarded(call: object, *arguments: object) -> None:
            try:
                call(*arguments)  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)
                raise

        names = [f"n{number}" for number in range(NAMES)]
        threads = [threading.Thread(target=guarded, args=(call_often, urls, name, ended, answered)) for name in names]
        threads.append(threading.Thread(target=guarded, args=(work, urls, ended, done)))
        for thread in threads:
            thread.start()
        for number in range(kills):
            before = len(answered)
            while len(answered) < before + 5 and not failures:
                time.sleep(0.01)
            time.sleep(rng.random() * 0.1)  # the moment of the kill is the input
            running[number % 2].kill()
            running[number % 2] = stack.enter_context(start(ports[number % 2]))
        ended.set()
        for thread in threads:
            thread.join()
        assert failures == []
        late = [one for one in done if answered.get((one.name, one.number + 1), one.began) < one.began]
        assert late == []
        check(client, names, answered)


def check(client: Client, names: list[str], answered: dict[tuple[str, int], float]) -> None:
    """Compares what is there with the last value of each name, which is there unless it was acknowledged."""
    newest = {name: f"{name}:{max(number for known, number in answered if known == name)}" for name in names}
    there = {name: client.named(QUEUE).get(name) for name in names}
    for name, message in there.items():
        assert message is None or message.body == newest[name]
    end = time.monotonic() + 60
    while True:
        shown = {str(message.body) for message in client.read_all(QUEUE, partitions="*", since=0)}
        if {message.body for message in there.values() if message is not None} <= shown:
            break
        assert time.monotonic() < end, f"{shown} is shown, {there} is there"
        time.sleep(0.2)
    assert shown <= set(newest.values())


def test_killed_services(start: Start) -> None:
    """Whatever a service was doing when it died: a name has its newest value, and nobody finishes an older one."""
    run(start, kills=3, seed=1)


@pytest.mark.slow
def test_many_killed_services(start: Start) -> None:
    """The same many times, at new moments each time."""
    run(start, kills=40, seed=random.randrange(1 << 30))
