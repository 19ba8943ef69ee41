"""Named messages while services are killed with -9: the newest value is there, alone, and its holders are told."""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

import pytest

from queuey.client import Client, ClientError, RetryPolicy
from tests.acceptance.crashes.conftest import APP, KEY, PATIENT, Start, kill_often
from tests.servers.served import free_port

QUEUE, PARTITIONS, NAMES = "tasks", 2, 3
REST = 0.03
"""Seconds between a caller's calls, about as long as a call: some are always under way, and services can start."""


class Acknowledged(NamedTuple):
    """A value that was acknowledged: its name and number, and when that was begun."""

    name: str
    number: int
    began: float


def call_often(urls: list[str], name: str, answered: dict[tuple[str, int], float], ended: threading.Event) -> None:
    """Sets a name to one number after another; notes when that was answered."""
    with Client(urls, key=KEY, application=APP, retry=PATIENT, timeout=20) as client:
        number = 0
        while not ended.is_set():
            number += 1
            client.named(QUEUE).set(name, f"{name}:{number}")
            answered[name, number] = time.monotonic()
            time.sleep(REST)


def work(urls: list[str], done: list[Acknowledged], ended: threading.Event) -> None:
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
    with ExitStack() as stack:
        running = {port: stack.enter_context(start(port)) for port in (free_port(), free_port())}
        urls = [f"http://127.0.0.1:{port}" for port in running]
        client = stack.enter_context(Client(urls, key=KEY, application=APP, retry=PATIENT))
        client.create_queue(QUEUE, partitions=PARTITIONS)
        answered: dict[tuple[str, int], float] = {}
        done: list[Acknowledged] = []
        names = [f"n{number}" for number in range(NAMES)]
        calls = [*(partial(call_often, urls, name, answered) for name in names), partial(work, urls, done)]
        kill_often(stack, start, running, calls, answered, kills=kills, rng=random.Random(seed))
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
    run(start, kills=2, seed=1)


ONCE = RetryPolicy(rounds=1)


class Said(NamedTuple):
    """Of each name the last number that was sent, and the last one that was answered."""

    sent: dict[str, int]
    answered: dict[str, int]


def set_until_killed(url: str, name: str, said: Said, killed: threading.Event) -> None:
    """Sets a name to one number after another, each once."""
    with Client(url, key=KEY, application=APP, retry=ONCE, timeout=20) as client:
        for number in itertools.count(1):
            if killed.is_set():
                return
            said.sent[name] = number
            with suppress(ClientError):
                client.named(QUEUE).set(name, f"{name}:{number}")
                said.answered[name] = number


def read_until(client: Client, last: str) -> set[str]:
    """Reads by time, again and again, until everything before the last message is shown; names nothing."""
    end = time.monotonic() + 60
    settled = False
    while True:
        bodies = [str(message.body) for message in client.read_all(QUEUE, partitions="*", since=0)]
        names = [body.partition(":")[0] for body in bodies]
        assert len(names) == len(set(names)), f"{sorted(bodies)} is shown"
        if settled:
            return set(bodies)
        settled = last in bodies
        assert time.monotonic() < end, f"{bodies} is shown"
        time.sleep(0.1)


def read_after_kills(start: Start, *, kills: int, seed: int) -> None:
    """Kills a service that sets names, and reads by time through another one before anybody names them again."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        port, other = free_port(), free_port()
        stack.enter_context(start(other))
        client = stack.enter_context(Client(f"http://127.0.0.1:{other}", key=KEY, application=APP, retry=PATIENT))
        client.create_queue(QUEUE, partitions=PARTITIONS)
        said = Said({}, {})
        for number in range(kills):
            service, killed = stack.enter_context(start(port)), threading.Event()
            names = [f"n{number}-{each}" for each in range(NAMES * 2)]
            url = f"http://127.0.0.1:{port}"
            threads = [threading.Thread(target=set_until_killed, args=(url, name, said, killed)) for name in names]
            for thread in threads:
                thread.start()
            while any(said.answered.get(name, 0) < 2 for name in names):
                time.sleep(0.01)
            time.sleep(rng.random() * 0.1)  # the moment of the kill is the input
            service.kill()
            killed.set()
            for thread in threads:
                thread.join()
            client.send(QUEUE, f"kill{number}:")
            shown = read_until(client, f"kill{number}:")
            for name in names:
                possible = {f"{name}:{each}" for each in range(said.answered[name], said.sent[name] + 1)}
                assert possible & shown, f"none of {sorted(possible)} is shown"
        by_name = {str(found.body) for name in said.sent if (found := client.named(QUEUE).get(name)) is not None}
        assert by_name == {body for body in shown if not body.startswith("kill")}


@pytest.mark.slow
def test_readers_after_kills(start: Start) -> None:
    """A reader by time is shown one value of a name, although nobody has named it since its writer was killed."""
    read_after_kills(start, kills=10, seed=random.randrange(1 << 30))


@pytest.mark.slow
def test_many_killed_services(start: Start) -> None:
    """The same many times, at new moments each time."""
    run(start, kills=40, seed=random.randrange(1 << 30))
