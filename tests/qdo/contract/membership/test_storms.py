"""Members that are killed, stopped, and cut off at random lose no commit and never commit for another."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections import Counter

import pytest

from qdo.coordination import Coordinator
from qdo.errors import CoordinationLost
from tests.qdo.contract.backends import Service, from_outside
from tests.qdo.contract.events import PATIENCE
from tests.qdo.contract.processes import ROOT

MEMBERS = 4
ENOUGH = 100
"""Commits that were recorded at least, however slowly the processes begin."""


class Storming:
    """A process that counts, and what it says of that."""

    def __init__(self, process: asyncio.subprocess.Process, said: dict[str, Counter[int]]) -> None:
        self._process = process
        self._said = said
        self._listening = asyncio.create_task(self._listen())
        self.until: float | None = None

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):
                self._said[line.decode()[0]][int(line[1:])] += 1

    def stop(self, seconds: float) -> None:
        """Stops it; it goes on when it is asked to after that time."""
        self._process.send_signal(signal.SIGSTOP)
        self.until = time.monotonic() + seconds

    def go_on(self, *, at_once: bool = False) -> None:
        """Continues it, if its time has come."""
        if self.until is not None and (at_once or time.monotonic() >= self.until):
            self._process.send_signal(signal.SIGCONT)
            self.until = None

    async def kill(self) -> None:
        """Kills it and waits for what it said."""
        self._process.kill()
        await self._end()

    async def finish(self) -> None:
        """Has it end by itself."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._end()
        assert self._process.returncode == 0

    async def _end(self) -> None:
        await self._process.wait()
        await self._listening
        assert self._process.stdin is not None
        self._process.stdin.close()


class Storm:
    """Processes that count, and what happens to them.

    Attributes:
        said: How many commits of each partition were tried (?), recorded (+) and refused (-).
    """

    def __init__(self, service: Service, seed: int) -> None:
        self.said: dict[str, Counter[int]] = {what: Counter() for what in "?+-"}
        self._service = service
        self._chance = random.Random(seed)
        self._seed = seed
        self._living: list[Storming] = []
        self._cut = False
        self._started = 0

    async def start(self) -> None:
        """Starts one more process."""
        self._started += 1
        name, timeout = f"m{self._started}", str(self._service.short)
        arguments = "-m", "tests.qdo.contract.storming", self._service.url, "group", name, timeout, str(self._seed)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe, cwd=ROOT)
        self._living.append(Storming(process, self.said))

    async def strike(self) -> None:
        """Does one thing to one of them; those that were stopped for long enough go on."""
        for each in self._living:
            each.go_on()
        if self._cut or self._chance.random() < 0.1:
            await (self._service.heal() if self._cut else self._service.cut())
            self._cut = not self._cut
        elif len(self._living) < MEMBERS:
            await self.start()
        elif self._chance.random() < 0.3:
            await self._living.pop(self._chance.randrange(MEMBERS)).kill()
        else:
            longer = self._chance.random() < 0.7
            self._chance.choice(self._living).stop(self._service.short * (1.3 if longer else 0.2))

    async def blow_over(self) -> None:
        """Undoes what was done, and waits until enough was counted."""
        if self._cut:
            await self._service.heal()
            self._cut = False
        for each in self._living:
            each.go_on(at_once=True)
        async with asyncio.timeout(PATIENCE):
            while self.said["+"].total() <= ENOUGH:  # noqa: ASYNC110 - the processes say so, one after another
                await asyncio.sleep(0.05)

    async def calm(self) -> None:
        """Ends everything."""
        if self._cut:
            await self._service.heal()
            self._cut = False
        while self._living:
            await self._living.pop().finish()


async def numbers(coordinator: Coordinator) -> Counter[int]:
    """Returns the number that is recorded for each partition."""
    found = await coordinator.offsets()
    return Counter({partition.number: int(offset.id or 0) for partition, offset in found.items()})


@from_outside
@pytest.mark.parametrize("strikes", [12, pytest.param(150, marks=pytest.mark.slow)])
async def test_no_commit_is_lost_and_none_is_undone(service: Service, coordinator: Coordinator, strikes: int) -> None:
    """Every answered commit counts once, no number moves back, and no more is recorded than was tried."""
    storm = Storm(service, seed=strikes)
    chance = random.Random(strikes)
    last: Counter[int] = Counter()
    for _ in range(MEMBERS):
        await storm.start()
    try:
        for _ in range(strikes):
            await asyncio.sleep(chance.random() * service.short / 2)  # what happens in between is the processes' affair
            await storm.strike()
            with contextlib.suppress(CoordinationLost):
                found = await numbers(coordinator)
                assert last <= found
                last = found
        await storm.blow_over()
    finally:
        await storm.calm()
    found = await numbers(coordinator)
    assert last <= found
    assert storm.said["+"] <= found, "an answered commit is lost"
    assert found <= storm.said["?"] - storm.said["-"], "more is recorded than was tried"
