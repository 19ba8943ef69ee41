"""``python -m tests.soak [--minutes N]``: both stores, all kinds of consumers, and kills, at once.

Services, Qdo workers and Cassandra nodes are killed or paused all the time, while writers send and consumers read by
time, wait in long polls, claim, and work in groups of the service and of ZooKeeper. Every process is watched.

In the end no acknowledged message may be missing, nothing may be left to do, and no process may have grown by more than
``tests.soak.usage`` allows. Each violation is a line, and the exit code is 1. Ctrl-C ends a run early, with all checks;
a second one ends it at once.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.soak.landscape import running
from tests.soak.run import Run
from tests.soak.usage import MEGABYTE

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Runs everything at once, with kills.")
    parser.add_argument("--minutes", type=float, default=10, help="how long messages are written; default: 10")
    parser.add_argument("--nodes", type=int, default=3, help="number of Cassandra nodes; default: 3")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="seed of traffic and faults")
    parser.add_argument("--reports", type=Path, default=ROOT / "build" / "soak", help="directory; default: build/soak")
    options = parser.parse_args(arguments)
    logs = options.reports / time.strftime("%Y%m%d-%H%M%S")
    logs.mkdir(parents=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupt(stop))
    print(f"{options.minutes:g} minutes, {options.nodes} nodes, seed {options.seed}; logs in {logs}", flush=True)
    with tempfile.TemporaryDirectory(prefix="queuey-soak-") as data:
        with running(Path(data), logs, options.nodes, options.seed) as landscape:
            run = Run(landscape, options.seed, stop)
            run.perform(options.minutes * 60)
        report = {"seed": options.seed, "nodes": options.nodes, **run.report()}
    (logs / "report.json").write_text(json.dumps(report, indent=1), "utf-8")
    print(summary(report))
    return 1 if report["violations"] else 0


def interrupt(stop: threading.Event) -> None:
    """Ends the run in order at the first signal, at once at the second.

    Raises:
        KeyboardInterrupt: It is the second signal.
    """
    if stop.is_set():
        raise KeyboardInterrupt
    stop.set()


def summary(report: Mapping[str, Any]) -> str:
    stored = ", ".join(f"{count:,} ({store})" for store, count in report["acknowledged"].items())
    lines = [f"\n{report['seconds']} s, {stored} acknowledged; drained after {report['drained after seconds']} s"]
    lines += [f"{count:6,} x {kind}" for kind, count in report["faults"].items()]
    lines += [f"\n{'consumer':32}{'seen':>10}{'longest lag':>14}"]
    for name, facts in report["consumers"].items():
        lines.append(f"{name:32}{facts['seen']:>10,}{facts['longest lag, seconds']:>12.1f} s")
    lines += [f"\n{'process: first third -> last third':36}{'memory, MB':>16}{'handles':>16}{'threads':>16}"]
    for name, facts in report["processes"].items():
        first, last = facts["first"], facts["last"]
        cells = [f"{first['memory'] // MEGABYTE} -> {last['memory'] // MEGABYTE}"]
        cells += [f"{first[what]} -> {last[what]}" for what in ("handles", "threads")]
        lines.append(f"{name:36}" + "".join(f"{cell:>16}" for cell in cells))
    lines += ["", *(f"VIOLATION: {text}" for text in report["violations"])]
    return "\n".join([*lines, f"{len(report['violations'])} violations"])


if __name__ == "__main__":
    sys.exit(main())
