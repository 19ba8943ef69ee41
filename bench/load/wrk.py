"""Runs the same jobs with wrk, if it is installed. wrk needs a third of the CPU of our generator.

On two cores, a generator takes CPU from the server; the faster the server, the more. wrk checks a status only for
success and has no warm-up, so its figures are shown next to those of our generator.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.harness import Void
from bench.load import traffic
from bench.load.traffic import Job, Metered, Sample
from bench.started.processes import Process

PATH = shutil.which("wrk")

_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_SCRIPT = """local requests = {{{}}}
local at = 0
request = function()
  at = at % #requests + 1
  return requests[at]
end
"""


def make_script(job: Job) -> str:
    return _SCRIPT.format(",".join(_quote(text) for text in job.requests))


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r\n", "\\r\\n") + '"'


def run(server: Process, job: Job, *, seconds: float, connections: int = 64, backend: Metered | None = None) -> Sample:
    """Runs a job in wrk with one thread. The generator must have warmed up the server before.

    Raises:
        Void: An answer was not a success, or a connection failed.
    """
    before = 0.0 if backend is None else backend.cpu_seconds()
    sample = parse_output(*_run_script(server, make_script(job), seconds, connections), job)
    if backend is None:
        return sample
    return replace(sample, backend=(backend.cpu_seconds() - before) * 1e6 / (sample.answers * job.messages))


def _run_script(server: Process, program: str, seconds: float, connections: int) -> tuple[str, float, str]:
    """Runs wrk for whole seconds, at least one.

    Returns its output, the CPU seconds of the server, and the error text for a bad result.
    """
    before = server.cpu_seconds()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job.lua"
        path.write_text(program)
        process = subprocess.run(
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
    return process.stdout, cpu, f"{server.name}: {process.stdout}{process.stderr}\n{server.log_tail()}"


def parse_output(output: str, cpu: float, complaint: str, job: Job) -> Sample:
    """Parses the output of wrk; raises Void with ``complaint`` for a bad one.

    Raises:
        Void: The output reports errors or no answer, or is not the output of wrk.
    """
    total = re.search(r"([1-9]\d*) requests in", output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    longest = re.search(r"Latency\s+\S+\s+\S+\s+(\S+)", output)
    quantiles = dict(re.findall(r"(50|99)%\s+(\S+)", output))
    if total is None or rate is None or longest is None or "Non-2xx" in output or "Socket errors" in output:
        raise Void(complaint)
    return Sample(
        rate=float(rate[1]) * job.messages,
        p50=_milliseconds(quantiles["50"]),
        p99=_milliseconds(quantiles["99"]),
        longest=_milliseconds(longest[1]),
        cpu=cpu * 1e6 / (int(total[1]) * job.messages),
        answers=int(total[1]),
        size=0.0,
    )


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", text).groups()  # type: ignore[union-attr] # the format of wrk
    return round(float(number) * _UNITS[unit], 3)


LIGHTEST_GENERATOR = traffic.run if PATH is None else run
"""The available generator that takes the least CPU from the server."""
