"""``python -m bench [names] [--quick] [--json FILE]``."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import random
import sys
import time
from pathlib import Path
from typing import Any

import apsw

from bench import measures
from bench.harness import REGISTRY, Void, take
from bench.pages import SUMMARY
from bench.results import Report, table, verdict_cells
from bench.started.processes import commit, contents

__all__ = ["main", "measures"]


def main(arguments: list[str] | None = None) -> int:
    """Takes the measures that were asked for; returns 1 if one of them could not be completed."""
    options = parse(arguments)
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    facts = {**machine(), "quick": options.quick, "seed": seed}
    print("# Queuey's benchmarks\n")
    print("\n".join(f"* {name}: {value}" for name, value in facts.items()) + "\n", flush=True)
    began = time.monotonic()
    reports: list[Report] = []
    broken: dict[str, str] = {}
    usual = [name for name, entry in REGISTRY.items() if name in SUMMARY or (entry.peers and options.peers)]
    for name in options.names or (REGISTRY if options.all else usual):
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            report = take(REGISTRY[name], quick=options.quick, seed=seed, parent=options.dir)
        except Void as error:
            broken[name] = str(error)
            print(f"## {name}: VOID\n\n{error}\n", flush=True)
            continue
        reports.append(report)
        print(report.as_text(), flush=True)
    print(summary(reports, broken))
    print(f"\n{time.monotonic() - began:,.0f} s in all" + (" (quick: not figures to quote)" if options.quick else ""))
    if options.json is not None:
        content = {"facts": facts, "reports": [report.as_json() for report in reports], "void": broken}
        options.json.write_text(json.dumps(content, indent=1), "utf-8")
    return 1 if broken else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Queuey's speed.")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"of {', '.join(REGISTRY)}; default: those of docs/performance.md"
    )
    parser.add_argument("--peers", action="store_true", help="and comparisons with other products: an hour more")
    parser.add_argument("--all", action="store_true", help="everything: many hours")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works, not to quote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    parser.add_argument("--dir", type=Path, help="where temporary data goes; default: the temporary directory")
    parser.add_argument("--seed", type=int, help="of the order of runs")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in REGISTRY]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(REGISTRY)}")
    return options


def machine() -> dict[str, Any]:
    """Returns where and with what was measured."""
    model = next(
        (line.partition(":")[2].strip() for line in open_lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    packages = ("httptools", "uvloop", "granian", "pyramid", "apsw", "msgspec")
    return {
        "commit": commit(),
        "contents": contents(),
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{model}, {os.cpu_count()} cores",
        "load before": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages),
        "sqlite": apsw.sqlite_lib_version(),
    }


def open_lines(path: str) -> list[str]:
    """Returns the lines of a file of the kernel's."""
    return Path(path).read_text("utf-8").splitlines()


def summary(reports: list[Report], broken: dict[str, str]) -> str:
    """Returns every verdict in one table, and what is missing from it."""
    lines = [[report.name, *verdict_cells(verdict)] for report in reports for verdict in report.verdicts]
    parts = ["## All figures"]
    if lines:
        parts.append(table(["measure", "figure", "median", "lowest to highest", "goal", ""], lines))
    parts += [f"SKIPPED {report.name}: {report.skipped}" for report in reports if report.skipped]
    parts += [f"VOID {name}" for name in broken]
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
