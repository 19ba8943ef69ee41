"""The demo: serves a real feed, kills the service, kills a worker, shows that nothing is lost. Ends by itself.

Exit code 0 if everything it claims was true, 1 otherwise. It leaves no process and no file behind but the chart that
its last part draws, if Spark is installed.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path

from parts import PARTS, Stage
from pipeline import is_installed
from service import DemoFailed, Service

from queuey.model.errors import QueueyError
from queuey.terminal import output


def main() -> int:
    """Runs all parts; returns the exit code: 0, 1 if a part failed, or 130 if it was interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="queuey-demo-") as directory:
        service = Service(Path(directory))
        try:
            _run(Stage(service))
        except (DemoFailed, QueueyError, OSError) as failure:
            print(f"\nThe demo failed: {failure}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            return 130
        finally:
            service.kill()
    but = " but the chart" if is_installed() else ""
    print(f"\nAll of it in {time.monotonic() - began:.1f} s. Nothing is left running and no file is left behind{but}.")
    return 0


def _run(stage: Stage) -> None:
    for number, (title, part) in enumerate(PARTS, 1):
        began = time.monotonic()
        account = part(stage)
        print(f"\n{number}. {title} ({time.monotonic() - began:.2f} s)\n{account.text}", flush=True)
        if account.rows:
            output.show({}, [output.Table(account.columns, account.rows)])


if __name__ == "__main__":
    sys.exit(main())
