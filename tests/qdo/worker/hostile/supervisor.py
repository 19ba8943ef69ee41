"""A supervisor: ``python -m tests.qdo.worker.hostile.supervisor <most starts> <arguments of qdo>``.

It starts ``qdo`` again as soon as it has ended, unless it ended as asked. Each start is a fork of this process, which
has imported everything.
"""

from __future__ import annotations

import importlib
import os
import sys

from qdo.__main__ import main
from qdo.worker.failure import ExitCode
from tests.qdo.worker.hostile.handlers import note

IMPORTED = ("qdo.cli.work", "qdo.worker.worker", "qdo.coordination.zookeeper")


def supervise(most: int, arguments: list[str]) -> None:
    """Starts ``qdo`` up to ``most`` times, until it ends by itself. Notes each start and end."""
    for name in IMPORTED:
        importlib.import_module(name)
    for _ in range(most):
        process = os.fork()
        if not process:
            os.environ["HOSTILE_WORKER"] = str(os.getpid())
            _work(arguments)
        note(f"started {process}")
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        note(f"ended {code}")
        if code in {ExitCode.ENDED, ExitCode.UNFINISHED}:
            return


def _work(arguments: list[str]) -> None:
    """Runs ``qdo`` in this process and ends it with its code; never returns."""
    sys.argv = ["qdo", *arguments]
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    supervise(int(sys.argv[1]), sys.argv[2:])
