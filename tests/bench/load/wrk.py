"""The same jobs by wrk, where it is installed: a generator that takes a third of the CPU of our own.

On two cores a generator takes from the server what it needs itself, the more the faster the server is. wrk checks
statuses only as success or not and has no warm-up of its own, so it stands beside the other figures.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.bench.harness import Void
from tests.bench.load.traffic import Job, Sample
from tests.bench.started.processes import Process

PATH = shutil.which("wrk")

_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_SCRIPT = """local requests = {{{}}}
local at = 0
request = function()
  at = at % #requests + 1
  return requests[at]
end
"""


def script(job: Job) -> str:
    """Returns a job as wrk takes it: a Lua program."""
    texts = (text.replace("\\", "\\\\").replace('"', '\\"').replace("\r\n", "\\r\\n") for text in job.requests)
    return _SCRIPT.format(",".join(f'"{text}"' for text in texts))


def run(server: Process, job: Job, *, seconds: float, connections: int = 64) -> Sample:
    """Lets wrk do a job with one thread, after a run of the generator that has warmed the server up.

    Raises:
        Void: An answer was no success, or a connection failed.
    """
    before = server.cpu_seconds()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job.lua"
        path.write_text(script(job))
        done = subprocess.run(
            [
                *(str(PATH), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"),
                *("-s", str(path), f"http://127.0.0.1:{server.port}/"),
            ],
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=False,
        )
    cpu = server.cpu_seconds() - before
    return read(done.stdout, cpu, job, f"{server.name}: {done.stdout}{done.stderr}\n{server.log_tail()}")


def read(output: str, cpu: float, job: Job, complaint: str) -> Sample:
    """Reads what wrk prints.

    Raises:
        Void: It tells of errors, or is not what wrk prints.
    """
    total = re.search(r"(\d+) requests in", output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    longest = re.search(r"Latency\s+\S+\s+\S+\s+(\S+)", output)
    parts = dict(re.findall(r"(50|99)%\s+(\S+)", output))
    if total is None or rate is None or longest is None or "Non-2xx" in output or "Socket errors" in output:
        raise Void(complaint)
    return Sample(
        rate=float(rate[1]) * job.messages,
        p50=_milliseconds(parts["50"]),
        p99=_milliseconds(parts["99"]),
        longest=_milliseconds(longest[1]),
        cpu=cpu * 1e6 / (int(total[1]) * job.messages),
        answers=int(total[1]),
        size=0.0,
    )


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", text).groups()  # type: ignore[union-attr] # wrk's own form
    return round(float(number) * _UNITS[unit], 3)
