"""``queuey demo``: runs the program of ``deploy/demo``, which wheels contain as ``queuey/demo``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def demo() -> None:
    """Run the service, workers and jobs on a real feed, kill them, and show that nothing is lost.

    It uses its own directory and port, does not touch other services or their data, and ends within a minute.
    """
    installed = PACKAGE / "demo"
    directory = installed if installed.is_dir() else PACKAGE.parent / "deploy" / "demo"
    os.execv(sys.executable, [sys.executable, str(directory / "run.py")])  # noqa: S606 - without a shell
