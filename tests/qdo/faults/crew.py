"""Worker processes: started, killed, stopped and told to leave, each in a slot that outlives it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.faults.checking.history import now
from tests.qdo.faults.checking.records import Ended, Joined, Journal, Tail
from tests.qdo.faults.job import Job, to_environment
from tests.servers.served import environment

ROOT = Path(__file__).parents[3]
LEAVE_SECONDS = 60.0


class Process:
    """One worker.

    Attributes:
        job: What it was told.
        told: That it ended, or shall end, was somebody's wish.
    """

    def __init__(self, job: Job, output: Path) -> None:
        self.job = job
        self.told = False
        self._tail = Tail(Path(job.journal))
        self._session = ""
        with output.open("ab") as log:
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
        """How it ended, None while it has not."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process; children that handle for it notice by themselves."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Waits for its end; returns its code, or None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def session(self) -> str:
        """Returns how the service knows its latest session, empty if it has had none."""
        for record in self._tail.new():
            if isinstance(record, Joined):
                self._session = record.session
        return self._session


class Crew:
    """The workers of an experiment.

    Args:
        directory: For their journals and what they print.
        job: Makes what a worker in a slot is told, given the slot and the worker's name.
        journal: Where their ends are written down.
    """

    def __init__(self, directory: Path, job: Callable[[str, str], Job], journal: Journal) -> None:
        self._directory = directory
        self._job = job
        self._journal = journal
        self._slots: dict[str, Process] = {}
        self._started: dict[str, int] = {}
        self._all: list[Process] = []
        self._lock = threading.Lock()

    def start(self, slot: str) -> str:
        """Starts a worker in a slot, unless one is there; returns its name."""
        with self._lock:
            there = self._slots.get(slot)
            if there is not None and there.code is None:
                return there.job.worker
            number = self._started[slot] = self._started.get(slot, 0) + 1
            job = self._job(slot, f"{slot}.{number}")
            job = msgspec.structs.replace(job, journal=str(self._directory / f"worker-{job.worker}.jsonl"))
            process = self._slots[slot] = Process(job, self._directory / f"worker-{job.worker}.log")
            self._all.append(process)
            return job.worker

    def worker(self, slot: str, *, start: bool = False) -> str:
        """Returns the name of the worker in a slot, which may have to be started."""
        return self.start(slot) if start else self._slots[slot].job.worker

    def session(self, slot: str) -> str:
        """Returns how the service knows the session of the worker in a slot."""
        return self._slots[slot].session()

    def kill(self, slot: str) -> None:
        """Kills the worker in a slot."""
        process = self._slots[slot]
        if process.told:
            return  # it is leaving, which takes longer on a busy machine than the plan has it
        process.told = True
        process.signal(signal.SIGKILL)
        process.wait(LEAVE_SECONDS)

    def pause(self, slot: str) -> None:
        """Stops the worker in a slot where it is."""
        self._slots[slot].signal(signal.SIGSTOP)

    def resume(self, slot: str) -> None:
        """Lets it go on."""
        self._slots[slot].signal(signal.SIGCONT)

    def stopped(self, slot: str) -> bool:
        """Tells whether the worker in a slot is stopped."""
        stat = Path(f"/proc/{self._slots[slot]._process.pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "T"

    def leave(self, slot: str) -> None:
        """Tells the worker in a slot to leave, and waits until it has; one that is ending already is left alone."""
        process = self._slots[slot]
        if process.told:
            return
        process.told = True
        told = None if process.code is not None else now()
        process.signal(signal.SIGTERM)
        code = process.wait(LEAVE_SECONDS)
        if code is None:
            process.signal(signal.SIGABRT)
        self._journal.add(Ended(now(), process.job.worker, told, code))

    def fallen(self) -> list[str]:
        """Returns the slots whose workers have ended by themselves, each once."""
        found = []
        for slot, process in list(self._slots.items()):
            if not process.told and process.code is not None:
                process.told = True
                self._journal.add(Ended(now(), process.job.worker, None, process.code))
                found.append(slot)
        return found

    def alive(self) -> list[str]:
        """Returns the slots with a worker that has not ended."""
        return [slot for slot, process in sorted(self._slots.items()) if process.code is None and not process.told]

    def end(self) -> None:
        """Kills whoever is left."""
        for process in self._all:
            process.signal(signal.SIGKILL)
            process.wait(LEAVE_SECONDS)
