"""Writers are killed with -9 at random moments: acknowledged writes are stored, once, and none is torn."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from queuey.model import ids
from queuey.model.messages import QueueSpec, Slice
from queuey.storage import bridge
from queuey.storage.sqlite import check, open_store
from tests.acceptance.crashes.crash_writer import APP, PARTITIONS, QUEUE
from tests.servers.processes import ending
from tests.waiting import until

ROOT = Path(__file__).parents[3]
ROUNDS = 5
"""Enough rounds to detect frequent failures; the slow tests look for rare ones."""

END_SECONDS = 60.0
FIRST = 2
"""Acknowledged calls of each process before it may be killed, so that a slow machine has some, too."""

Place = tuple[int, str]


@dataclass
class ReportedWrites:
    """What the killed processes reported.

    Attributes:
        bodies: Required body at each position.
        either: Body before or after an unacknowledged last call by position; None if deleted.
        lines: Number of acknowledged calls.
    """

    bodies: dict[Place, str] = field(default_factory=dict)
    either: dict[Place, set[str | None]] = field(default_factory=dict)
    lines: int = 0

    def record_line(self, line: bytes) -> None:
        """Records a line; an incomplete line was cut off by the kill."""
        try:
            kind, places = json.loads(line)
        except ValueError:
            return
        self.lines += 1
        for place, body in ((as_place(entry), entry[-1]) for entry in places):
            match kind:
                case "append" | "put":
                    self.bodies[place] = body
                    self.either.pop(place, None)
                case "putting":
                    self.either[place] = {self.bodies.pop(place), body}
                case "deleting":
                    self.either[place] = {self.bodies.pop(place), None}
                case "delete":
                    self.either.pop(place)


def as_place(entry: list[Any]) -> Place:
    return entry[0], entry[1]


class Victim:
    """A writing process, whose reports go to a file."""

    def __init__(self, directory: Path, name: str, seed: int) -> None:
        self._said = directory.with_name(f"{name}.said")
        command = [sys.executable, "-m", "tests.acceptance.crashes.crash_writer", str(directory), name, str(seed)]
        with self._said.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, cwd=ROOT)

    def read_lines(self) -> list[bytes]:
        return self._said.read_bytes().splitlines()

    def kill(self) -> None:
        assert self.process.poll() is None, "it ended by itself"
        self.process.kill()
        self.process.wait(END_SECONDS)


def round_of_killing(directory: Path, number: int, rng: random.Random, truth: ReportedWrites) -> None:
    with ExitStack() as started:
        victims = [Victim(directory, f"{number}.{n}", rng.randrange(1 << 30)) for n in range(2)]
        for victim in victims:
            started.enter_context(ending(victim.process))
        until(lambda: all(len(victim.read_lines()) > FIRST for victim in victims))
        for victim in rng.sample(victims, 2):
            time.sleep(rng.choice((0.0, 0.003, 0.03, 0.15)) * rng.random())  # the moment of the kill is the input
            victim.kill()
    for victim in victims:
        for line in victim.read_lines():
            truth.record_line(line)


def read_stored(directory: Path) -> list[tuple[Place, str]]:
    store = open_store(directory)
    queue = bridge.run(store.catalogue.queue(APP, QUEUE))
    messages: list[tuple[Place, str]] = []
    for partition in range(1, PARTITIONS + 1):
        before = len(messages)
        lower = ids.FIRST
        more = True
        while more:
            (page,) = bridge.run(store.messages.read(queue, [Slice(partition=partition, lower=lower, limit=1000)]))
            messages += [((partition, message.id), str(message.body)) for message in page.messages]
            assert page.next is not None
            lower, more = page.next, page.more
        assert bridge.run(store.messages.inspect(queue))[1][partition - 1].count >= min(len(messages) - before, 1)
    store.close()
    return messages


def check_store(directory: Path, truth: ReportedWrites) -> None:
    messages = read_stored(directory)
    places = dict(messages)
    assert len(places) == len(messages), "a message is shown twice"
    assert {place: body for place, body in truth.bodies.items() if places.get(place) != body} == {}
    assert [place for place, bodies in truth.either.items() if places.get(place) not in bodies] == []
    counts = Counter(body for _, body in messages)
    assert [body for body, count in counts.items() if count > 1] == [], "a body is stored twice"
    check_batches_complete(messages, truth)
    assert check(directory) == []


def check_batches_complete(found: list[tuple[Place, str]], truth: ReportedWrites) -> None:
    """Fails if a batch is stored in part; messages whose writes were reported do not count."""
    reported = truth.bodies.keys() | truth.either.keys()
    batches: Counter[tuple[str, int]] = Counter()
    for place, body in found:
        match = re.fullmatch(r"(.+):\d+/(\d+)", body)
        if match and place not in reported:
            batches[match[1], int(match[2])] += 1
    assert [batch for batch, count in batches.items() if count != batch[1]] == []


def kill_again_and_again(directory: Path, rounds: int, seed: int) -> ReportedWrites:
    store = open_store(directory)
    bridge.run(store.applications.create_application(APP))
    bridge.run(store.catalogue.create_queue(APP, QUEUE, QueueSpec(partitions=PARTITIONS)))
    store.close()
    truth, rng = ReportedWrites(), random.Random(seed)
    for number in range(rounds):
        round_of_killing(directory, number, rng, truth)
        check_store(directory, truth)
    return truth


@pytest.mark.parametrize(
    ("rounds", "seed"), [(ROUNDS, 1), *(pytest.param(75, seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_killed_writers(tmp_path: Path, rounds: int, seed: int) -> None:
    """After each of some rounds with two processes killed, everything acknowledged is there exactly once."""
    truth = kill_again_and_again(tmp_path / "data", rounds, seed)
    assert truth.lines > rounds * 2 * 2


def kill_while_opening(place: Path, rounds: int, seed: int) -> None:
    """Kills two processes while they create the same store, which must then open and pass its check."""
    rng = random.Random(seed)
    program = "import sys, pathlib, queuey.storage.sqlite as s; s.open_store(pathlib.Path(sys.argv[1])).ping(); input()"
    for number in range(rounds):
        directory = place / str(number)
        command = [sys.executable, "-c", program, str(directory)]
        makers = [subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
        until(directory.exists)
        time.sleep(rng.random() * 0.02)  # the moment of the kill is the input
        for maker in makers:
            maker.kill()
            maker.communicate(timeout=END_SECONDS)
        store = open_store(directory)
        bridge.run(store.applications.create_application(APP))
        bridge.run(store.ping())
        store.close()
        assert check(directory) == []


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_while_opening(tmp_path: Path, rounds: int) -> None:
    """A store whose makers are killed while they make it can be opened, and is whole."""
    kill_while_opening(tmp_path, rounds, seed=7)
