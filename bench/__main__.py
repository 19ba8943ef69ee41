"""The command ``python -m bench [names] [--quick] [--json FILE]``."""

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
from bench.harness import REGISTRY, Void, run_measure
from bench.pages import SUMMARY
from bench.results import Report, format_table, verdict_cells
from bench.started.processes import describe_commit, hash_product

__all__ = ["main", "measures"]


def main(arguments: list[str] | None = None) -> int:
    """Runs the named measures; by default those of the page for users, with ``--peers`` those with other products.

    Prints each report and writes them all to the file of ``--json``. A void measure does not end the run, but the
    command then returns 1.
    """
    options = parse_arguments(arguments)
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    facts = {**collect_facts(), "quick": options.quick, "seed": seed}
    print("# Queuey's benchmarks\n")
    print("\n".join(f"* {name}: {value}" for name, value in facts.items()) + "\n", flush=True)
    began = time.monotonic()
    reports: list[Report] = []
    void: dict[str, str] = {}
    default_names = [name for name, entry in REGISTRY.items() if name in SUMMARY or (entry.peers and options.peers)]
    for name in options.names or (REGISTRY if options.all else default_names):
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            report = run_measure(REGISTRY[name], quick=options.quick, seed=seed, parent=options.dir)
        except Void as error:
            void[name] = str(error)
            print(f"## {name}: VOID\n\n{error}\n", flush=True)
            continue
        reports.append(report)
        print(report.as_text(), flush=True)
    print(make_summary(reports, void))
    print(f"\n{time.monotonic() - began:,.0f} s in all" + (" (quick: not figures to quote)" if options.quick else ""))
    if options.json is not None:
        content = {"facts": facts, "reports": [report.as_json() for report in reports], "void": void}
        options.json.write_text(json.dumps(content, indent=1), "utf-8")
    return 1 if void else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Queuey's speed.")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"one of {', '.join(REGISTRY)}; default: those of docs/performance.md"
    )
    parser.add_argument("--peers", action="store_true", help="also compare with other products (one hour more)")
    parser.add_argument("--all", action="store_true", help="run all measures (many hours)")
    parser.add_argument("--quick", action="store_true", help="short runs that only show that the measures work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--dir", type=Path, help="directory for temporary data; default: the system's")
    parser.add_argument("--seed", type=int, help="seed of the order of the runs")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in REGISTRY]
    if unknown:
        parser.error(f"unknown measures: {', '.join(unknown)}; use {', '.join(REGISTRY)}")
    return options


def collect_facts() -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in open_lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    packages = ("httptools", "uvloop", "pyramid", "apsw", "msgspec")
    return {
        "commit": describe_commit(),
        "contents": hash_product(),
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{model}, {os.cpu_count()} cores",
        "load before": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages),
        "sqlite": apsw.sqlite_lib_version(),
    }


def open_lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()


def make_summary(reports: list[Report], broken: dict[str, str]) -> str:
    lines = [[report.name, *verdict_cells(verdict)] for report in reports for verdict in report.verdicts]
    parts = ["## All figures"]
    if lines:
        parts.append(format_table(["measure", "figure", "median", "lowest to highest", "goal", ""], lines))
    parts += [f"SKIPPED {report.name}: {report.skipped}" for report in reports if report.skipped]
    parts += [f"VOID {name}" for name in broken]
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
