"""Worker processes in slots that outlive them: started, killed, stopped and told to leave."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.harness.checking.records import Ended
from tests.harness.history import Journal, now
from tests.qdo.faults.job import Job, to_environment
from tests.servers.served import environment

ROOT = Path(__file__).parents[3]
LEAVE_SECONDS = 60.0


class Process:
    """One worker.

    Attributes:
        job: The options of the worker.
        end_requested: The schedule asked it to end.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.end_requested = False
        with Path(job.journal).with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.qdo.faults.member"],
                cwd=ROOT,
                env=environment(**to_environment(job)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process; its child processes notice by themselves."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait_for_end()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def wait_for_end(self) -> int | None:
        """Waits for its end; returns its code, or None if it does not end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(LEAVE_SECONDS)
        return None


class Crew:
    """The workers of a run.

    Args:
        job: Returns the options of a worker, given its slot and its name.
        journal: Records their ends.
    """

    def __init__(self, job: Callable[[str, str], Job], journal: Journal) -> None:
        self._job = job
        self._journal = journal
        self._slots: dict[str, Process] = {}
        self._started: Counter[str] = Counter()
        self._all: list[Process] = []
        self._lock = threading.Lock()

    def __getitem__(self, slot: str) -> Process:
        return self._slots[slot]

    def start(self, slot: str) -> str:
        """Starts a worker in a slot, unless one runs there; returns its name."""
        with self._lock:
            current = self._slots.get(slot)
            if current is None or current.code is not None:
                self._started[slot] += 1
                current = self._slots[slot] = Process(self._job(slot, f"{slot}.{self._started[slot]}"))
                self._all.append(current)
            return current.job.worker

    def worker(self, slot: str) -> str:
        return self[slot].job.worker

    def kill(self, slot: str) -> None:
        """Kills the worker in a slot, unless it was already asked to end."""
        process = self[slot]
        if not process.end_requested:  # else it is leaving, which on a busy machine takes longer than scheduled
            process.end_requested = True
            process.kill()

    def leave(self, slot: str) -> None:
        """Tells the worker in a slot to leave, waits for its end, and records that. One that is ending is left alone.

        A worker that does not end in time gets SIGABRT.
        """
        process = self[slot]
        if process.end_requested:
            return
        process.end_requested = True
        told = None if process.code is not None else now()
        process.signal(signal.SIGTERM)
        code = process.wait_for_end()
        if code is None:
            process.signal(signal.SIGABRT)
        self._journal.add(Ended(now(), process.job.worker, told, code))

    def restart_ended(self) -> None:
        for slot, process in list(self._slots.items()):
            if not process.end_requested and process.code is not None:
                process.end_requested = True
                self._journal.add(Ended(now(), process.job.worker, None, process.code))
                self.start(slot)

    def running_slots(self) -> list[str]:
        return [
            slot for slot, process in sorted(self._slots.items()) if process.code is None and not process.end_requested
        ]

    def end(self) -> None:
        for process in self._all:
            process.kill()
