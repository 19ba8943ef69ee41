"""Python runs this at its start. It puts the wall clock of the process ahead by ``WALL_CLOCK_AHEAD`` seconds."""

from __future__ import annotations

import os
import time

_ahead = round(float(os.environ["WALL_CLOCK_AHEAD"]) * 1e9)
_right = time.time_ns
time.time_ns = lambda: _right() + _ahead
