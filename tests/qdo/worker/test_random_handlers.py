"""Whatever handlers do, after a bounded number of starts each message is done or a dead letter."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from qdo.worker.failure import ExitCode
from queuey.client import Outgoing
from tests.qdo.cli.workers import WorkerProcess
from tests.qdo.worker.conftest import Workers
from tests.qdo.worker.test_misbehaving import RESPONSIVE
from tests.qdo.worker.test_signals import Start, start
from tests.waiting import PATIENCE_SECONDS

__all__ = ["start"]

ATTEMPTS, COUNT = 3, 10
MODES = {"threads": ["--threads", "3"], "tasks": ["--tasks", "3"], "processes": ["--processes", "2"]}
ENDING = {"murder", "exit", "hold 600", "task"}
"""Bodies that end the whole worker, some only after the time of ``--stalled-after``; ``task`` only in a loop."""
INSTANT = {"murder", "exit", "task", "leave", *(f"raise {kind}" for kind in ("error", "panic", "interrupt", "stop"))}
"""Bodies that end a handler at once."""
HANGING = {"rest 600", "swallow", "hold 600"}


def draw_bodies(chance: random.Random, kinds: set[str]) -> list[str]:
    """Draws bodies with their numbers; what ends the worker is often followed by more of its kind."""
    bodies, kind = [], "fine"
    for number in range(COUNT):
        if kind not in ENDING or chance.random() < 0.5:
            kind = chance.choice(sorted(kinds)) if chance.random() < 0.4 else "fine"
        bodies.append(kind if " " in kind else f"{kind} {number}")
    return bodies


def ends_worker(body: str, mode: str) -> bool:
    first = body.partition(" ")[0]
    if mode == "processes":
        return first == "murder"
    # A handler that rests hangs its thread in each attempt, and a worker whose threads all hang ends.
    return first in {"murder", "exit", "hold"} or first == {"tasks": "task", "threads": "rest"}[mode]


async def play(
    workers: Workers, start: Start, mode: str, chance: random.Random, kinds: set[str], *options: str
) -> None:
    """Starts a worker of ten drawn messages again and again, until each is done or a dead letter."""
    partitions = chance.choice([1, 2, 3])
    queue = await workers.system.queue(partitions=partitions)
    bodies = draw_bodies(chance, kinds)
    placed = [(chance.randrange(partitions) + 1, {"key": chance.choice("abc")}) for _ in bodies]
    outgoing = [
        Outgoing(body, partition=number, headers=key) for body, (number, key) in zip(bodies, placed, strict=True)
    ]
    await workers.system.client.send_many(queue.name, outgoing)
    ending = sum(ends_worker(body, mode) for body in bodies)
    held = sum(body in HANGING for body in bodies)
    by = ["--by", "header:key"] if chance.random() < 0.5 else []
    common = ["--attempts", str(ATTEMPTS), "--drain", "5", *by, *options]
    lives: list[WorkerProcess] = []
    bad = Counter(body for body in bodies if not body.startswith("fine"))
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS  # Lives of workers one after another, each with its session.

    def said(word: str) -> Counter[str]:
        return Counter(text for life in lives for text in life.said(word))

    async def is_over() -> bool:
        letters = Counter(str(letter.body) for letter in await workers.letters(queue))
        return letters == bad and set(said("done")) == set(bodies) - bad.keys()

    while not await is_over():
        log = "\n".join(line for life in lives for line in life.log)
        assert time.monotonic() < deadline, (bodies, log)
        if not lives or lives[-1].process.poll() is not None:
            assert len(lives) <= ending * (ATTEMPTS + ending), (bodies, log)
            lives.append(start(queue, mode, *MODES[mode], *common))
        await asyncio.sleep(0.1)
    code = lives[-1].end()
    for body, times in said("begun").items():
        in_a_life = ATTEMPTS * bad[body] if body in bad else 1
        assert times <= len(lives) * in_a_life + held * ATTEMPTS, said("begun")
    assert code == ExitCode.ENDED or (held and code == ExitCode.UNFINISHED), lives[-1].log


@pytest.mark.parametrize(("mode", "seed"), [("threads", 7), ("tasks", 18), ("processes", 16)])
async def test_every_message_is_done_or_dead(workers: Workers, start: Start, mode: str, seed: int) -> None:
    """With handlers that kill, exit and raise every message ends; a static worker does not wait for its old session."""
    await play(workers, start, mode, random.Random(seed), INSTANT, "--name", "worker", "--grace", "1m")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", MODES)
async def test_handlers_of_all_kinds_leave_nothing_undone(workers: Workers, start: Start, mode: str, seed: int) -> None:
    """Every message ends also with handlers that hang, swallow their cancellation, or block the whole worker."""
    chance = random.Random(f"{mode} {seed}")
    options = [*RESPONSIVE, "--stalled-after", "5s"]
    if chance.random() < 0.5:
        options += ["--name", "worker", "--grace", "1m"]
    await play(workers, start, mode, chance, INSTANT | HANGING, *options)
