"""Whatever handlers do, after a bounded number of starts each message is done or a dead letter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qdo.worker.failure import ExitCode
from queuey.client import Outgoing
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS
from tests.qdo.worker.conftest import Workers
from tests.qdo.worker.hostile import handlers
from tests.qdo.worker.hostile.handlers import ENDING, KINDS, RAISED
from tests.qdo.worker.test_misbehaving import list_dead_letters
from tests.servers.plugin import unique_name
from tests.servers.served import Served, environment
from tests.waiting import PATIENCE_SECONDS

ATTEMPTS, COUNT = 3, 10
MODES = {"threads": ["--threads", "3"], "tasks": ["--tasks", "3"], "processes": ["--processes", "2"]}
INSTANT_KINDS = {"fine", "kill", "exit", "task", *RAISED}
"""Bodies that take no time."""


class Supervised:
    """A supervisor with its worker, and the records of all its runs."""

    def __init__(self, directory: Path, starts: int, arguments: list[str]) -> None:
        self._book = directory / "book"
        self._log = (directory / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.qdo.worker.hostile.supervisor", str(starts), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment(HOSTILE_BOOK=str(self._book)),
            start_new_session=True,
        )

    def said(self, word: str) -> list[str]:
        lines = self._book.read_text().splitlines() if self._book.exists() else []
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]

    async def stop(self) -> int:
        """Ends the worker as a supervisor does, and returns its code; a worker that is dying just then is restarted."""
        told: set[str] = set()
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS  # Lives of workers one after another, each with its session.
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.log
            for pid in self.said("started")[-1:]:
                if pid not in told and len(self.said("ended")) < len(self.said("started")):
                    told.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGTERM)
            await asyncio.sleep(0.05)
        return int(self.said("ended")[-1])

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        self._log.close()


def draw_outgoing(chance: random.Random, kinds: set[str], partitions: int) -> list[Outgoing]:
    most, outgoing = sorted(kinds - {"fine"}), []
    kind = "fine"
    for number in range(COUNT):
        if kind not in ENDING or chance.random() < 0.5:
            kind = chance.choice(most) if chance.random() < 0.4 else "fine"
        headers = {"key": chance.choice("abc")}
        outgoing.append(Outgoing(f"{kind}:{number}", partition=chance.randrange(partitions) + 1, headers=headers))
    return outgoing


def ends_worker(kind: str, mode: str) -> bool:
    if mode == "tasks":
        return kind in ENDING
    return kind in ({"kill"} if mode == "processes" else ENDING - {"task"})


Supervise = Callable[[int, list[str]], Supervised]


async def play(
    workers: Workers, supervise: Supervise, mode: str, chance: random.Random, kinds: set[str], *options: str
) -> None:
    """Supervises a worker of a queue with ten drawn messages, until each is done or a dead letter."""
    partitions = chance.choice([1, 2, 3])
    queue = await workers.system.queue(partitions=partitions)
    outgoing = draw_outgoing(chance, kinds, partitions)
    await workers.system.client.send_many(queue.name, outgoing)
    bodies = {str(each.body): str(each.body).partition(":")[0] for each in outgoing}
    ending = sum(ends_worker(kind, mode) for kind in bodies.values())
    held = sum(kind in {"hang", "swallow", "block"} for kind in bodies.values())
    handler = "handle_async" if mode == "tasks" else "handle"
    by = ["--by", "header:key"] if chance.random() < 0.5 else []
    supervised = supervise(
        1 + ending * (ATTEMPTS + ending),
        [f"{handlers.__name__}:{handler}", "--queue", queue.name, *MODES[mode], *by, *options],
    )
    letters: set[str] = set()
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS  # Lives of workers one after another, each with its session.
    while not bodies.keys() <= {*supervised.said("done"), *letters}:
        assert time.monotonic() < deadline, (bodies, letters, supervised.log)
        assert supervised.process.poll() is None, (bodies, supervised.said("ended"), letters, supervised.log)
        await asyncio.sleep(0.1)
        letters = {str(body) for body, _ in await list_dead_letters(workers, queue)}
    code = await supervised.stop()
    assert letters == {body for body, kind in bodies.items() if kind != "fine"}, supervised.log
    assert set(supervised.said("done")) == bodies.keys() - letters, supervised.log
    begun = Counter(supervised.said("begun"))
    for body, times in begun.items():
        in_a_life = ATTEMPTS if body in letters else 1
        assert times <= len(supervised.said("started")) * in_a_life + held * ATTEMPTS, (begun, supervised.log)
    assert code == ExitCode.ENDED or (held and code == ExitCode.UNFINISHED), supervised.log


@pytest.fixture
def supervise(running: Served, tmp_path: Path) -> Iterator[Supervise]:
    """Starts supervisors that end with their test."""
    with contextlib.ExitStack() as stack:

        def begin(starts: int, arguments: list[str]) -> Supervised:
            common = [
                "--profile",
                str(running.profile_path),
                "--group",
                unique_name("group"),
                "--attempts",
                str(ATTEMPTS),
            ]
            common += ["--retry-base", "0.01", "--retry-cap", "0.01", "--drain", "5"]
            directory = Path(tempfile.mkdtemp(dir=tmp_path))
            supervised = Supervised(directory, starts, ["work", *arguments, *common])
            stack.callback(supervised.kill)
            return supervised

        yield begin


@pytest.mark.parametrize(("mode", "seed"), [("threads", 7), ("tasks", 18), ("processes", 16)])
async def test_every_message_is_done_or_dead(workers: Workers, supervise: Supervise, mode: str, seed: int) -> None:
    """With handlers that kill, exit and raise every message ends; a static worker does not wait for its old session."""
    where = ["--name", "worker", "--grace", "1m"]
    await play(workers, supervise, mode, random.Random(seed), INSTANT_KINDS, *where)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", MODES)
async def test_handlers_of_all_kinds_leave_nothing_undone(
    workers: Workers, supervise: Supervise, mode: str, seed: int
) -> None:
    """Every message ends also with handlers that hang, swallow their cancellation, or block the whole worker."""
    chance = random.Random(f"{mode} {seed}")
    options = ["--session-timeout", str(RESPONSIVE_SESSION_SECONDS), "--stalled-after", "5s"]
    if chance.random() < 0.5:
        options += ["--name", "worker", "--grace", "1m"]
    await play(workers, supervise, mode, chance, KINDS, *options)
