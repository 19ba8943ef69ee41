"""Kills and pauses web processes and nodes, and cuts links, by a plan, and records when."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from tests.faults.checking.history import Fault, FaultKind, Recorder, now
from tests.servers.served import Served

MINUTES = 4.0
"""Of each long run, unless ``FAULT_MINUTES`` says otherwise."""


def fault_minutes() -> float:
    """How long faults go on in each long run, of whatever kind."""
    return float(os.environ.get("FAULT_MINUTES", MINUTES))


def in_minutes(least: Mapping[str, int]) -> dict[str, int]:
    """Adapts what a run of :data:`MINUTES` must have seen at least to how long faults go on."""
    return {name: int(number * fault_minutes() / MINUTES) for name, number in least.items()}


class Victim(Protocol):
    """What can be killed, paused and brought back. The nodes of ``deploy.local`` are such."""

    def kill(self) -> None:
        """Ends it by SIGKILL."""

    def start(self) -> None:
        """Starts it on what it left, and waits until it serves."""

    def pause(self) -> None:
        """Stops it where it is."""

    def resume(self) -> None:
        """Lets it go on."""


@runtime_checkable
class Severable(Protocol):
    """What can be cut and healed: a link."""

    def cut(self) -> None:
        """Lets nothing through any more."""

    def heal(self) -> None:
        """Lets everything through again."""


class WebProcess:
    """A service with all its processes, at the same port for as long as it lives on.

    Args:
        serve: Starts it at a port; None: a free one.
    """

    def __init__(self, serve: Callable[[int | None], Served]) -> None:
        self._serve = serve
        self.served = serve(None)
        self.earlier: list[str] = []

    @property
    def output(self) -> str:
        """Everything printed by all its lives."""
        return "".join([*self.earlier, self.served.output])

    def wait(self) -> None:
        """Waits until it serves."""
        self.served.wait_for("Queuey serves at")

    def kill(self) -> None:
        """Ends it by SIGKILL, the parent and its workers."""
        self.served.kill()

    def start(self) -> None:
        """Starts it again and waits until it serves."""
        self.earlier.append(self.served.output)
        self.served = self._serve(self.served.port)
        self.wait()

    def pause(self) -> None:
        """Stops all its processes where they are."""
        os.killpg(self.served.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets them go on."""
        os.killpg(self.served.process.pid, signal.SIGCONT)


class OneWorker:
    """One of the worker processes of a service; the service replaces it when it is killed.

    Args:
        service: It has several.
        number: Which, in the order of their process ids.
    """

    def __init__(self, service: WebProcess, number: int) -> None:
        self._service = service
        self._number = number
        self._pids: list[int] = []

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self._pids = self._workers()
        os.kill(self._pids[self._number - 1], signal.SIGKILL)

    def start(self) -> None:
        """Waits until there is another one."""
        while len(found := self._workers()) < len(self._pids) or found == self._pids:
            time.sleep(0.05)

    def pause(self) -> None:
        """Stops it where it is."""
        self._pids = self._workers()
        os.kill(self._pids[self._number - 1], signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        os.kill(self._pids[self._number - 1], signal.SIGCONT)

    def _workers(self) -> list[int]:
        pid = self._service.served.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sorted(int(child) for child in children if b"spawn_main" in _command(child))


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


class Step(NamedTuple):
    """One fault.

    Attributes:
        target: Name of the victim.
        seconds: How long it is paused, or dead before it is started again.
        after: Seconds from the beginning of the act.
    """

    kind: FaultKind
    target: str
    seconds: float
    after: float = 0.0


Act = tuple[Step, ...]
"""Faults that go on together. An act is over when all of them are undone."""


def perform(acts: Iterable[Act], victims: Mapping[str, Victim | Severable], recorder: Recorder, *, rest: float) -> None:
    """Performs acts one after another.

    Args:
        acts: What to do.
        victims: By name.
        recorder: Is told of each fault when it is over.
        rest: Seconds without fault after each act.
    """
    clock = threading.Event()
    with ThreadPoolExecutor(len(victims)) as pool:
        for act in acts:
            running = [pool.submit(_fault, step, victims[step.target], recorder) for step in act]
            for one in running:
                one.result()
            clock.wait(rest)


def _fault(step: Step, victim: Victim | Severable, recorder: Recorder) -> None:
    clock = threading.Event()
    clock.wait(step.after)
    start = now()
    do, undo = _ways(step.kind, victim)
    do()
    clock.wait(step.seconds)
    undo()
    recorder.add(Fault(start=start, end=now(), target=step.target, kind=step.kind))


def _ways(kind: FaultKind, victim: Victim | Severable) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns what does a fault, and what undoes it."""
    if isinstance(victim, Severable):
        return victim.cut, victim.heal
    return (victim.kill, victim.start) if kind == "kill" else (victim.pause, victim.resume)


class Span(NamedTuple):
    """The times that matter to a store: W and D in seconds."""

    deadline: float
    delay: float


def random_acts(seed: int, webs: Sequence[str], nodes: Sequence[str], span: Span, seconds: float) -> Iterator[Act]:
    """Draws acts until the time is over."""
    rng, until = random.Random(seed), now() + seconds
    while now() < until:
        yield random_act(rng, webs, nodes, span)


def random_act(rng: random.Random, webs: Sequence[str], nodes: Sequence[str], span: Span) -> Act:
    """Draws an act: nodes and web processes, killed or paused for times around W and D, mostly not all at once."""
    times = [0.3 * span.deadline, 1.05 * span.deadline, 1.3 * span.deadline, 1.1 * span.delay, 2 * span.deadline]

    def step(target: str, kills: float) -> Step:
        kind: FaultKind = "kill" if rng.random() < kills else "pause"
        return Step(kind, target, rng.choice(times) * rng.uniform(0.9, 1.1), rng.choice((0.0, 0.0, 0.5, 1.5)))

    hit = rng.sample(nodes, min(len(nodes), rng.choice((0, 0, 1, 1, 1, 1, 2, 2, 2, 3))))
    chosen = [step(node, kills=0.25) for node in hit]
    if not chosen or rng.random() < 0.4:
        chosen += [step(web, kills=0.3) for web in rng.sample(webs, rng.choice((1, 1, 1, len(webs))))]
    return tuple(chosen)
