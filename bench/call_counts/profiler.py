"""Counts the calls of Python functions of Queuey and Qdo in this process, in all threads.

A call is each entry of a function and each resumption of a generator or coroutine. A comprehension counts only in
Python 3.11, where it is a function of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from bench.started.processes import ROOT

PACKAGES = tuple(f"{ROOT / name}/" for name in ("queuey", "qdo"))
TIMER_FUNCTIONS = {"_measure_turn"}
"""Functions that a timer calls, with or without requests."""
QUIET_SECONDS = 0.03
"""An operation is over when no function was called for this time."""
MAX_SETTLE_SECONDS = 2.0


class Count(NamedTuple):
    """The counts of one operation; they compare by files, then by calls."""

    files: int
    calls: int


class Profiler:
    """Records calls while it is counting.

    Install it in the main thread before other threads start, because a thread is profiled only from its start.
    """

    def __init__(self) -> None:
        self._counting = False
        self._entered: list[CodeType] = []

    def install(self) -> None:
        """Profiles this thread and all threads that start later."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def begin(self) -> None:
        self._entered = []
        self._counting = True

    def end(self) -> Counter[str]:
        """Stops counting; returns the calls by file, relative to the repository."""
        self._counting = False
        return Counter(
            code.co_filename.removeprefix(f"{ROOT}/") for code in self._entered if code.co_filename.startswith(PACKAGES)
        )

    def settle(self) -> None:
        """Waits until no function is called, within limits, so that work after the answer is counted, too."""
        deadline = time.monotonic() + MAX_SETTLE_SECONDS
        before = -1
        while before != len(self._entered) and time.monotonic() < deadline:
            before = len(self._entered)
            time.sleep(QUIET_SECONDS)

    def _on_event(self, frame: FrameType, event: str, _argument: Any) -> None:  # noqa: ANN401 - not used
        if event == "call" and self._counting and frame.f_code.co_name not in TIMER_FUNCTIONS:
            self._entered.append(frame.f_code)


def find_fewest(runs: list[Counter[str]]) -> Counter[str]:
    """Returns the run with the fewest files, and of these the one with the fewest calls."""
    return min(runs, key=make_count)


def make_count(calls: Counter[str]) -> Count:
    return Count(len(calls), calls.total())
