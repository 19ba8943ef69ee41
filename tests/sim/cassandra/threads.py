"""Threads in simulated time: code that blocks runs as it is, a greenlet for each of its threads.

A thread goes on until it waits for something; then another one does, whichever the world says. So what two threads do
is interleaved at their waits. After a crash of their process they stand still where they are.
"""

from __future__ import annotations

import asyncio
import math
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet

from queuey.storage import deadlines
from queuey.storage.cassandra.driver.store_loop import StoreLoop
from queuey.storage.deadlines import NO_CALL, Call, Deadline
from tests.replacing import replace_in
from tests.sim.world import TURN, Process, ProcessLoop

PRODUCT = ("queuey.storage.cassandra", "queuey.storage.deadlines", "queuey.storage.watching")
"""Where threads are simulated, with the clock that they wait by and their chance."""


class SimulatedThread(greenlet):  # type: ignore[misc]  # it has no types
    """One thread of one life of a process; it begins at once.

    Args:
        process: Whose thread this is.
        work: What it does.
        name: For logs.
    """

    def __init__(self, process: Process, work: Callable[[], object], name: str = "") -> None:
        super().__init__(parent=_hub())
        self.process = process
        self.name = name
        self.values: dict[Any, Any] = {}
        """What is local to it."""
        self._work = work
        self._life = process.life
        self._waits = 0
        self._ended = Event()
        process.threads.append(self)  # Whoever is collected runs its `finally`.
        process.soon(process.world.rng.random() * TURN, self._begin)

    def _begin(self) -> None:
        self.switch()

    def run(self) -> None:
        """Works."""
        self._work()
        self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end."""
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """Returns whether it has not ended."""
        return not self._ended.is_set()

    def park(self, seconds: float | None) -> bool:
        """Stands still until it is woken; returns False if it was not within so many seconds."""
        if seconds is not None:
            self.process.soon(seconds, self._goes_on(woken=False), self._life)
        woken: bool = self.parent.switch()
        return woken

    def wake(self) -> None:
        """Has it go on soon."""
        self.process.soon(self.process.world.rng.random() * TURN, self._goes_on(woken=True), self._life)

    def _goes_on(self, *, woken: bool) -> Callable[[], None]:
        wait = self._waits

        def go_on() -> None:
            if wait == self._waits:
                self._waits += 1
                self.switch(woken)

        return go_on


def _hub() -> greenlet:
    """Returns what runs the world."""
    found = getcurrent()
    while found.parent is not None:
        found = found.parent
    return found


def pause(seconds: float) -> None:
    """Has the present thread stand still for a while."""
    _present().park(seconds)


def _present() -> SimulatedThread:
    found = getcurrent()
    assert isinstance(found, SimulatedThread), "an event loop, or the test, would wait for a thread"
    return found


class _Waited:
    """What threads wait for."""

    def __init__(self) -> None:
        self._waiting: deque[SimulatedThread] = deque()

    def _await(self, there: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until something is there; returns whether it is."""
        until = math.inf
        while not there():
            me = _present()
            now = me.process.world.now
            until = min(until, math.inf if timeout is None or timeout < 0 else now + timeout)
            if now >= until:
                return False
            self._waiting.append(me)
            me.park(None if until == math.inf else until - now)
            self._forget(me)
        return True

    def _forget(self, me: SimulatedThread) -> None:
        if me in self._waiting:
            self._waiting.remove(me)

    def _tell(self, most: float = math.inf) -> None:
        while self._waiting and most > 0:
            self._waiting.popleft().wake()
            most -= 1


class Semaphore(_Waited):
    """See ``threading``."""

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002
        """See ``threading``."""
        if not self._await(lambda: self._value > 0, timeout if blocking else 0):
            return False
        self._value -= 1
        return True

    def release(self) -> None:
        """See ``threading``."""
        self._value += 1
        self._tell(1)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Lock(Semaphore):
    """See ``threading``."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002
        """See ``threading``. What does not have to wait may be asked by anybody."""
        if self._value > 0:
            self._value -= 1
            return True
        return blocking and super().acquire(blocking, timeout)

    def locked(self) -> bool:
        """See ``threading``."""
        return not self._value


class Condition(_Waited):
    """See ``threading``; nothing is waited for within its block but itself."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading``."""
        me = _present()
        self._waiting.append(me)
        woken = me.park(timeout)
        self._forget(me)
        return woken

    def notify(self) -> None:
        """See ``threading``."""
        self._tell(1)


class Event(_Waited):
    """See ``threading``."""

    def __init__(self) -> None:
        super().__init__()
        self._set = False

    def set(self) -> None:
        """See ``threading``."""
        self._set = True
        self._tell()

    def clear(self) -> None:
        """See ``threading``."""
        self._set = False

    def is_set(self) -> bool:
        """See ``threading``."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading``."""
        return self._await(lambda: self._set, timeout)


class SimpleQueue(_Waited):
    """See ``queue``."""

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[Any] = deque()

    def __class_getitem__(cls, _item: object) -> type[SimpleQueue]:
        return cls

    def put(self, item: object) -> None:
        """See ``queue``."""
        self._items.append(item)
        self._tell(1)

    def get(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - of any type
        """See ``queue``."""
        if not self._await(lambda: bool(self._items), timeout):
            raise queue.Empty
        return self._items.popleft()


class SimulatedLoop(StoreLoop):
    """The loop of a process's store. What would be in another thread happens at once.

    Args:
        process: Whose loop this is.
        enter: See the base class.
    """

    def __init__(self, process: Process, enter: Callable[[asyncio.AbstractEventLoop], Callable[[], object]]) -> None:
        self._process = process
        super().__init__(enter)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = ProcessLoop(self._process)  # type: ignore[abstract]  # much of it is not needed
        with loop.running():
            self._begin(loop)
        return loop

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """See the base class."""
        assert isinstance(loop, ProcessLoop)
        with loop.running():
            super().adopt(loop)

    def _replace(self, loop: asyncio.AbstractEventLoop | None) -> None:
        former, self._loop = self._loop, loop
        if isinstance(former, ProcessLoop):
            with former.running():
                self._leave_loop(former)


class SimulatedDeadline(Deadline):
    """A deadline of the call in the present simulated thread."""

    @property
    def call(self) -> Call:
        """See the base class."""
        found: Call = self._values().get((self, "call"), NO_CALL)
        return found

    @call.setter
    def call(self, value: Call) -> None:
        self._values()[self, "call"] = value

    def _values(self) -> dict[Any, Any]:
        present = getcurrent()
        return present.values if isinstance(present, SimulatedThread) else self.__dict__.setdefault("_of_loop", {})


def _new_thread(*, target: Callable[[], object], name: str = "", daemon: bool = True) -> SimpleNamespace:
    """Makes a thread, which its ``start`` begins; see ``threading.Thread``."""
    process, made = _present_process(), SimpleNamespace()
    made.is_alive = lambda: False

    def start() -> None:
        thread = SimulatedThread(process, target, name)
        made.join, made.is_alive = thread.join, thread.is_alive

    made.start = start
    return made


def _present_process() -> Process:
    assert Process.present is not None, "no process is running"
    return Process.present


_THREADING = SimpleNamespace(
    Thread=_new_thread,
    Lock=Lock,
    Event=Event,
    Semaphore=Semaphore,
    Condition=Condition,
    TIMEOUT_MAX=1e9,
    current_thread=getcurrent,
)


def _now() -> float:
    return _present_process().world.now


_TIME = SimpleNamespace(**{**vars(time), "monotonic": _now, "time": _now, "sleep": pause})


def _random() -> float:
    return _present_process().world.rng.random()


_RANDOM = SimpleNamespace(random=_random)


class _Pool:
    """See ``ThreadPoolExecutor``; work that finds no thread waits for one."""

    def __init__(self, most: int, thread_name_prefix: str = "") -> None:
        self._process = _present_process()
        self._free = most
        self._waiting: deque[Callable[[], object]] = deque()
        self._closed = False

    def submit(self, work: Callable[..., object], *arguments: object) -> None:
        """See ``ThreadPoolExecutor``."""
        if self._closed:
            raise RuntimeError("shut down")
        self._waiting.append(lambda: work(*arguments))
        if self._free:
            self._free -= 1
            SimulatedThread(self._process, self._run, "pool")

    def _run(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
        self._free += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """See ``ThreadPoolExecutor``."""
        self._closed = True


@contextmanager
def simulated_threads() -> Iterator[None]:
    """Has all threads of the Cassandra store be simulated."""
    instead = {
        threading: _THREADING,
        time: _TIME,
        random: _RANDOM,
        queue.SimpleQueue: SimpleQueue,
        ThreadPoolExecutor: _Pool,
        Deadline: SimulatedDeadline,
    }
    with ExitStack() as replaced:
        for name, module in list(sys.modules.items()):
            if name.startswith(PRODUCT):
                for there, by in instead.items():
                    if module is not deadlines or there is threading:
                        with suppress(TypeError):  # It has no name for it.
                            replaced.enter_context(replace_in(module, there, by))
        yield
