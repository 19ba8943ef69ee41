"""Python runs this at its start: the wall clock of the process is ahead by as many seconds as a variable says."""

from __future__ import annotations

import os
import time

_ahead = round(float(os.environ["WALL_CLOCK_AHEAD"]) * 1e9)
_right = time.time_ns
time.time_ns = lambda: _right() + _ahead
