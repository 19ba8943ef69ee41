"""The web processes of a run, their store, and the faults drawn for both."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from queuey.storage.cassandra.cluster.timing import KeyspaceTiming, LevelTiming
from tests.faults.wire import Account, Web
from tests.harness.nemesis import Step, Wave, inflict
from tests.harness.plans import Plan
from tests.harness.proxy import Proxy
from tests.servers.served import START_SECONDS, Served

NODE_SECONDS, WEB_SECONDS = 10.0, 1.0
"""Estimated seconds until a killed node, or a killed web process, serves again."""


WITH_WRONG_CLOCKS = Path(__file__).parent / "wrong_clocks"
"""The directory whose ``sitecustomize`` sets the wall clock of a process wrong."""


class Span(NamedTuple):
    """W and D of a store, in seconds."""

    deadline: float
    delay: float

    def make_timing(self, difference: float, row_age: float) -> KeyspaceTiming:
        """Returns the timing of a keyspace with S and C in seconds. What remains of D, if any, is for undo writes."""
        level = LevelTiming(self.deadline, max(0.0, self.delay - self.deadline - difference), self.delay)
        return KeyspaceTiming(difference, row_age, {"strong": level, "very_strong": level})


def make_span(timing: KeyspaceTiming) -> Span:
    level = timing.levels["strong"]
    return Span(level.deadline, level.delay)


class Victim(Protocol):
    """A server that can be killed, paused and brought back, such as the nodes of ``deploy.local``."""

    def kill(self) -> None:
        """Ends it with SIGKILL."""

    def start(self) -> None:
        """Restarts it on its data, and waits until it serves."""

    def pause(self) -> None:
        """Stops it where it is."""

    def resume(self) -> None:
        """Continues it after a pause."""


class Program(NamedTuple):
    """The ``queuey`` that a web process runs: its command, and environment variables."""

    words: Sequence[str]
    variables: Mapping[str, str] = {}


PRESENT = Program((sys.executable, "-m", "queuey"))


class Store(NamedTuple):
    """The store of the web processes.

    Attributes:
        span: W and D.
        options: Options of ``queuey serve``.
        account: The account of requests; None: the one that ``queuey serve`` creates.
        nodes: Servers that may be killed and paused, and proxies that may be cut, by name.
        settled: Called when the nodes are back. Waits until they know each other.
        converged: Called between the first and the second full read. Makes the copies agree.
        centres: Further options of web processes that are each in a data centre of its own, by name. Data centres agree
            only in the end, so then ``converged`` is called before the first full read.
        clocks: Seconds by which the wall clocks of web processes are ahead, by name.
        programs: Programs of web processes of another version, by name.
    """

    span: Span
    options: Sequence[str] = ()
    account: Account | None = None
    nodes: Mapping[str, Victim | Proxy] = {}
    settled: Callable[[], None] = lambda: None
    converged: Callable[[], None] = lambda: None
    centres: Mapping[str, Sequence[str]] = {}
    clocks: Mapping[str, float] = {}
    programs: Mapping[str, Program] = {}


class MakeStore(Protocol):
    """Returns a store on running servers."""

    def __call__(self, span: Span, *, difference: float, row_age: float) -> Store:
        """Returns a store with these W and D, and with S and C in seconds."""


class WebProcess:
    """A service with all its processes. It keeps its port over restarts.

    Args:
        serve: Starts it at a port; None: a free one.
    """

    def __init__(self, serve: Callable[[int | None], Served]) -> None:
        self._serve = serve
        self.served = serve(None)
        self.earlier = ""

    @property
    def output(self) -> str:
        return self.earlier + self.served.output

    def wait_until_serving(self) -> None:
        self.served.wait_for("Queuey serves at")

    def kill(self) -> None:
        self.served.kill()

    def start(self) -> None:
        """Starts it again on its port and waits until it serves; keeps its earlier output."""
        self.earlier = self.output
        self.served = self._serve(self.served.port)
        self.wait_until_serving()

    def pause(self) -> None:
        os.killpg(self.served.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.served.process.pid, signal.SIGCONT)


class OneWorker:
    """One of the worker processes of a service, which replaces it after a kill.

    Args:
        service: A service with several workers.
        number: The number of the worker in the order of process ids.
    """

    def __init__(self, service: WebProcess, number: int) -> None:
        self._service = service
        self._number = number
        self._pids: list[int] = []

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def start(self) -> None:
        """Waits until the service has replaced it. Fails at once if the service has ended."""
        process = self._service.served.process
        deadline = time.monotonic() + START_SECONDS
        while len(pids := self._service.served.workers()) < len(self._pids) or pids == self._pids:
            assert process.poll() is None, f"the service ended with {process.returncode}:\n{self._service.output}"
            assert time.monotonic() < deadline, f"no worker was replaced: {pids}\n{self._service.output}"
            time.sleep(0.05)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._pids[self._number - 1], signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        self._pids = self._service.served.workers()
        os.kill(self._pids[self._number - 1], number)


class Webs:
    """The web processes ``web-1`` and so on.

    Args:
        directory: Holds their data and output.
        store: Their store.
        count: Number of services.
        workers: Number of processes of each service.

    Attributes:
        account: The account of requests, while they serve.
    """

    def __init__(self, directory: Path, store: Store, count: int, workers: int = 1) -> None:
        self.account = store.account or Account("", "")
        self._directory = directory
        self._store = store
        self._names = [f"web-{number}" for number in range(1, count + 1)]
        self._workers = workers
        self._processes: dict[str, WebProcess] = {}

    @property
    def addresses(self) -> list[Web]:
        return [Web(name, process.served.port) for name, process in self._processes.items()]

    @property
    def output(self) -> str:
        return "".join(f"--- {name} ---\n{process.output}" for name, process in self._processes.items())

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Starts all web processes, which create the account if there is none; kills them at the end."""
        try:
            for name in self._names:
                self._processes[name] = WebProcess(partial(self._serve, name))
                if not self._store.account:  # the first service creates the account and its key
                    self._processes[name].wait_until_serving()
            for process in self._processes.values() if self._store.account else ():
                process.wait_until_serving()
            if not self._store.account:
                profile = self._processes["web-1"].served.profile
                self.account = Account(profile.application, profile.key)
            yield
        finally:
            for process in self._processes.values():
                process.kill()
            (self._directory / "output.txt").write_text(self.output)

    def _serve(self, name: str, port: int | None) -> Served:
        options = [*self._store.options, *self._store.centres.get(name, ()), "--workers", str(self._workers)]
        ahead = self._store.clocks.get(name, 0.0)
        clock = {"PYTHONPATH": str(WITH_WRONG_CLOCKS), "WALL_CLOCK_AHEAD": str(ahead)} if ahead else {}
        program = self._store.programs.get(name, PRESENT)
        variables = {**program.variables, **clock}
        return Served(self._directory, options, port=port, variables=variables, program=program.words)

    def inflict(self, step: Step) -> str:
        """Does a fault to a web process, a worker of one (``web-1/2``), a node or a link, and undoes it.

        Returns the target.
        """
        name, _, worker = step.target.partition("/")
        victim: Any = self._processes.get(name) or self._store.nodes[name]
        inflict(step.kind, [OneWorker(victim, int(worker)) if worker else victim], step.seconds)
        return step.target

    def make_waves(self, plan: Plan, written: Mapping[str, Sequence[Wave]], rest: float) -> Sequence[Wave]:
        """Returns the written waves that the plan names, or draws waves."""
        if plan.faults in written:
            return written[plan.faults]
        workers = [f"{name}/{number}" for name in self._names for number in range(1, self._workers + 1)]
        links = [name for name, node in self._store.nodes.items() if isinstance(node, Proxy)]
        nodes = [name for name in self._store.nodes if name not in links]
        kinds = plan.kinds({"kill", "pause", "cut"} if links else {"kill", "pause"})
        return draw_waves(
            plan, kinds, workers if self._workers > 1 else self._names, nodes, links, self._store.span, rest
        )


def draw_waves(
    plan: Plan,
    kinds: Sequence[str],
    webs: Sequence[str],
    nodes: Sequence[str],
    links: Sequence[str],
    span: Span,
    rest: float,
) -> list[Wave]:
    rng, planned, waves = random.Random(plan.seed), 0.0, list[Wave]()
    times = [0.3 * span.deadline, 1.05 * span.deadline, 1.3 * span.deadline, 1.1 * span.delay, 2 * span.deadline]

    def step(target: str, kills: float) -> Step:
        kind = "kill" if rng.random() < kills else "pause"
        kind = kind if kind in kinds else next(other for other in ("pause", "kill") if other in kinds)
        return Step(kind, target, rng.choice(times) * rng.uniform(0.9, 1.1), rng.choice((0.0, 0.0, 0.5, 1.5)))

    while planned < plan.seconds:
        wave: list[Step] = []
        if {"kill", "pause"}.intersection(kinds):
            hurt = rng.sample(nodes, min(len(nodes), rng.choice((0, 0, 1, 1, 1, 1, 2, 2, 2, 3))))
            wave = [step(node, kills=0.25) for node in hurt]
            if not wave or rng.random() < 0.4:
                wave += [step(web, kills=0.3) for web in rng.sample(webs, rng.choice((1, 1, 1, len(webs))))]
        if "cut" in kinds and (not wave or rng.random() < 0.7):
            wave += [Step("cut", link, rng.choice((0.3, 2 * span.deadline, 3 * span.delay))) for link in links]
        waves.append(tuple(wave))
        restarts = {"node": NODE_SECONDS, "web": WEB_SECONDS}
        planned += rest + max(
            each.at + each.seconds + (restarts[each.target.partition("-")[0]] if each.kind == "kill" else 0.0)
            for each in wave
        )
    return waves
