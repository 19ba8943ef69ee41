"""The command ``python -m bench.call_counts [--by-file OPERATION] [--lower]``, which ``make measure`` runs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.call_counts import record
from bench.call_counts.code_lines import PRODUCT, count_lines_by_package
from bench.call_counts.operations import count_all
from bench.call_counts.profiler import make_count
from bench.results import format_table


def main() -> int:
    """Counts and prints; with ``--lower``, lowers the record. Returns 1 if an operation exceeds the record."""
    parser = argparse.ArgumentParser(prog="python -m bench.call_counts", description="Counts files, calls and lines.")
    parser.add_argument("--by-file", metavar="OPERATION", help="also print the calls of this operation by file")
    parser.add_argument("--lower", action="store_true", help="write lower figures into the record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="queuey-calls-") as directory:
        calls = count_all(Path(directory))
    measured, recorded = {name: make_count(by_file) for name, by_file in calls.items()}, record.read_record()
    rows = [
        [name, str(count.files), str(count.calls), *(map(str, recorded[name]) if name in recorded else ("", ""))]
        for name, count in measured.items()
    ]
    print(format_table(["operation", "files", "calls", "recorded files", "recorded calls"], rows) + "\n")
    if options.by_file is not None:
        print(_make_file_table(calls[options.by_file]) + "\n")
    print(_make_lines_table())
    if options.lower:
        record.lower_record(measured)
    elif record.lower_counts(measured, recorded) != recorded:
        print(f"\n{record.HOW_TO_LOWER}")
    problems = record.find_exceeded(measured, recorded)
    print("".join(f"\n{problem}" for problem in problems), end="")
    return 1 if problems else 0


def _make_file_table(calls: Counter[str]) -> str:
    return format_table(["file", "calls"], [[path, str(count)] for path, count in calls.most_common()])


def _make_lines_table() -> str:
    lines = count_lines_by_package()
    total = sum(count for name, count in lines.items() if name.split("/")[0] in PRODUCT)
    rows = [[name, f"{count:,}"] for name, count in lines.items()]
    return format_table(["package", "code lines"], [*rows, [" and ".join(PRODUCT), f"{total:,}"]])


if __name__ == "__main__":
    sys.exit(main())
