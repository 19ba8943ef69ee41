"""``python -m tests.harness RUN --seed N --faults KINDS --seconds S`` repeats a fault run; ``report``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import msgspec
import pytest

from tests.harness import reports
from tests.harness.plans import PLAN_VARIABLE, RUNS, Plan

STALL_SECONDS = "7200"
"""A run is ended after this many seconds without progress. As for `make slow`: a single run may take minutes."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.harness", description="Repeats a fault run.")
    parser.add_argument("run", choices=[*RUNS, "report"], help="report: write all reports into docs/testing.md")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default="kill,pause", help="kinds of faults, or the name of a written schedule")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long faults are drawn for")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Repeats the run with its test, or writes and prints the table of all reports; returns the exit code."""
    options = make_parser().parse_args(arguments)
    if options.run == "report":
        reports.PAGE.write_text(reports.rewrite(reports.PAGE.read_text(), reports.read()))
        print(reports.table(reports.read()))
        return 0
    plan = Plan(options.seed, options.faults, options.seconds, slow=True, run=options.run)
    os.environ[PLAN_VARIABLE] = msgspec.json.encode(plan).decode()
    os.chdir(reports.ROOT)
    return pytest.main(["-n", "0", "--stall-limit", STALL_SECONDS, RUNS[plan.run]])


if __name__ == "__main__":
    sys.exit(main())
