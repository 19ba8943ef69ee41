"""Counts the steps of the interpreter in each turn of an event loop: a measure that does not depend on the machine."""

from __future__ import annotations

import sys
from asyncio.events import Handle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from queuey.runtime.event_loop import Core

STEP_SECONDS = 2e-8
"""Seconds of a step by the clock of :class:`StepCore`, about as long as on a machine."""
_RUN_TURN = Handle._run.__code__


class TurnMeter:
    """Counts the steps (bytecode instructions) of the callbacks that a loop runs. A sort or a search in C is one step.

    Attributes:
        steps: Steps counted so far.
        longest: Steps of the longest turn, by function.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.longest: Counter[str] = Counter()
        self._turn: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts in this thread, in the turns that begin within the block."""
        sys.settrace(self._begin)
        try:
            yield
        finally:
            sys.settrace(None)
            self._end_turn()

    def _begin(self, frame: FrameType, _event: str, _arg: object) -> Any:  # noqa: ANN401 - a trace function
        if frame.f_code is _RUN_TURN:
            self._end_turn()
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._count

    def _count(self, frame: FrameType, event: str, _arg: object) -> Any:  # noqa: ANN401 - a trace function
        if event == "opcode":
            self.steps += 1
            self._turn[frame.f_code.co_qualname] += 1
        return self._count

    def _end_turn(self) -> None:
        self.longest = max(self.longest, self._turn, key=Counter.total)
        self._turn = Counter()


class StepCore(Core):
    """A core whose clock counts a meter's steps, so that a slice of long work has the same steps on any machine.

    Args:
        meter: The meter.
    """

    def __init__(self, meter: TurnMeter) -> None:
        super().__init__()
        self.meter = meter

    def boottime(self) -> float:
        return self.meter.steps * STEP_SECONDS
