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
from bench.load.cycles import Dialect
from bench.load.traffic import Job, Metered, Sample
from bench.started.processes import Process

PATH = shutil.which("wrk")
BY_WRK = ", by wrk"
"""Suffix of the names of sides that wrk measured."""

_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_SCRIPT = """local requests = {{{}}}
local at = 0
request = function()
  at = at % #requests + 1
  return requests[at]
end
"""
_CYCLES = """local held = {{}}
local thread
claims, found, settled, wrong = 0, 0, 0, 0
setup = function(started)
  thread = started
end
request = function()
  local receipt = table.remove(held)
  if receipt == nil then
    claims = claims + 1
    return {claim}
  end
  settled = settled + 1
  claims = claims + {joined}
  local body = {before} .. string.format({each}, 1, receipt) .. {after}
  return {settle} .. #body .. "\\r\\n\\r\\n" .. body
end
response = function(status, headers, body)
  if string.find(body, '"superseded"', 1, true) then
    wrong = wrong + 1
  end
  for receipt in string.gmatch(body, {receipt}) do
    found = found + 1
    held[#held + 1] = receipt
  end
end
done = function()
  local names = {{"claims", "found", "settled", "wrong"}}
  for _, name in ipairs(names) do
    print(name .. ": " .. thread:get(name))
  end
end
"""
_MAX_EMPTY_SHARE = 0.01
"""Max share of empty claims; other connections may be faster."""


def make_script(job: Job) -> str:
    return _SCRIPT.format(",".join(_quote(text) for text in job.requests))


def make_cycle_script(dialect: Dialect) -> str:
    """Returns the Lua program that claims messages one by one and acknowledges them.

    A connection may acknowledge what another one has claimed, because wrk does not tell its script which connection
    asks.
    """
    fields = {name: _quote(text) for name, text in dialect.items() if isinstance(text, str)}
    return _CYCLES.format(**fields, joined=int("last" in dialect))


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


def run_cycles(server: Process, dialect: Dialect, *, seconds: float, connections: int) -> Sample:
    """Claims and acknowledges messages one by one in wrk. The latencies are those of all requests.

    Raises:
        Void: An answer was not a success, a connection failed, or the queue had too few messages.
    """
    return parse_cycles(*_run_script(server, make_cycle_script(dialect), seconds, connections), connections)


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
                *("-s", str(path), f"{server.scheme}://127.0.0.1:{server.port}/"),
            ],
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=False,
        )
    cpu = server.cpu_seconds() - before
    return process.stdout, cpu, f"{server.name}: {process.stdout}{process.stderr}\n{server.log_tail()}"


def parse_cycles(output: str, cpu: float, complaint: str, connections: int) -> Sample:
    """Parses the output of claim cycles.

    The last acknowledgement of each connection is not counted, because wrk may not have seen its answer.

    Raises:
        Void: See :func:`parse_output`; or too many claims were empty, or receipts were superseded.
    """
    requests = parse_output(output, cpu, complaint, Job([], 200))
    counters = {
        name: int(number) for name, number in re.findall(r"^(claims|found|settled|wrong): (\d+)$", output, re.MULTILINE)
    }
    settled = counters.get("settled", 0) - connections
    if (
        settled <= 0
        or counters["wrong"]
        or counters["found"] < (1 - _MAX_EMPTY_SHARE) * counters["claims"] - connections
    ):
        raise Void(complaint)
    return replace(requests, rate=requests.rate * settled / requests.answers, cpu=cpu * 1e6 / settled)


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
