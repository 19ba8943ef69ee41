"""The same jobs by wrk, where it is installed: a generator that takes a third of the CPU of our own.

On two cores a generator takes from the server what it needs itself, the more the faster the server is. wrk checks
statuses only as success or not and has no warm-up of its own, so it stands beside the other figures.
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
"""Ends the names of sides that wrk asks."""

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
_MOST_EMPTY = 0.01
"""The share of claims that may find nothing: others may be faster."""


def script(job: Job) -> str:
    """Returns a job as wrk takes it: a Lua program."""
    return _SCRIPT.format(",".join(_quoted(text) for text in job.requests))


def script_of_cycles(dialect: Dialect) -> str:
    """Returns claims of one message each, and the ends of these claims, as wrk takes them: a Lua program.

    A connection may end what another one has claimed: wrk does not say which one asks.
    """
    fields = {name: _quoted(text) for name, text in dialect.items() if isinstance(text, str)}
    return _CYCLES.format(**fields, joined=int("last" in dialect))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r\n", "\\r\\n") + '"'


def run(server: Process, job: Job, *, seconds: float, connections: int = 64, backend: Metered | None = None) -> Sample:
    """Lets wrk do a job with one thread, after a run of the generator that has warmed the server up.

    Raises:
        Void: An answer was no success, or a connection failed.
    """
    before = 0.0 if backend is None else backend.cpu_seconds()
    sample = read(*_run(server, script(job), seconds, connections), job)
    if backend is None:
        return sample
    return replace(sample, backend=(backend.cpu_seconds() - before) * 1e6 / (sample.answers * job.messages))


def run_cycles(server: Process, dialect: Dialect, *, seconds: float, connections: int) -> Sample:
    """Lets wrk claim messages, one at a time, and end the claims; the latencies are those of all requests.

    Raises:
        Void: An answer was no success, a connection failed, or there were too few messages.
    """
    return read_cycles(*_run(server, script_of_cycles(dialect), seconds, connections), connections)


def _run(server: Process, program: str, seconds: float, connections: int) -> tuple[str, float, str]:
    """Returns what wrk printed, how many seconds of CPU the server used, and a complaint in case that it is bad."""
    before = server.cpu_seconds()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job.lua"
        path.write_text(program)
        done = subprocess.run(
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
    return done.stdout, cpu, f"{server.name}: {done.stdout}{done.stderr}\n{server.log_tail()}"


def read_cycles(output: str, cpu: float, complaint: str, connections: int) -> Sample:
    """Reads what wrk prints after cycles of claims. Those that it may not have seen the end of do not count.

    Raises:
        Void: See :func:`read`, or claims found nothing, or were lost.
    """
    requests = read(output, cpu, complaint, Job([], 200))
    told = {
        name: int(number) for name, number in re.findall(r"^(claims|found|settled|wrong): (\d+)$", output, re.MULTILINE)
    }
    settled = told.get("settled", 0) - connections
    if settled <= 0 or told["wrong"] or told["found"] < (1 - _MOST_EMPTY) * told["claims"] - connections:
        raise Void(complaint)
    return replace(requests, rate=requests.rate * settled / requests.answers, cpu=cpu * 1e6 / settled)


def read(output: str, cpu: float, complaint: str, job: Job) -> Sample:
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


ASK = traffic.run if PATH is None else run
"""The generator that takes least of the server's CPU, of those that are there."""
