"""The record of files and calls that ``tests/bench/test_call_counts.py`` checks; figures may only fall."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.call_counts.profiler import Count
from bench.harness import Void

RECORD = Path(__file__).parent / "record.json"
HOW_TO_LOWER = "Some figures are lower than recorded. Lower the record: python -m bench.call_counts --lower"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def read_record(path: Path = RECORD) -> dict[str, Count]:
    return {name: Count(**counts) for name, counts in json.loads(path.read_text("utf-8"))["operations"].items()}


def find_exceeded(measured: Mapping[str, Count], recorded: Mapping[str, Count]) -> list[str]:
    """Returns a sentence for each operation that exceeds its record or has none."""
    problems = [f"{name} has no record" for name in measured if name not in recorded]
    for name, (files, calls) in recorded.items():
        count = measured[name]
        if count.files > files or count.calls > calls:
            problems.append(f"{name} crosses {count.files} files by {count.calls} calls; recorded: {files} and {calls}")
    return problems


def lower_counts(measured: Mapping[str, Count], recorded: Mapping[str, Count]) -> dict[str, Count]:
    return {name: Count(*map(min, measured[name], record)) for name, record in recorded.items()}


def lower_record(measured: Mapping[str, Count], path: Path = RECORD) -> None:
    """Writes the lower figures into the record.

    Raises:
        Void: The record is of another Python version, which counts calls differently.
    """
    python = json.loads(path.read_text("utf-8"))["python"]
    if python != PYTHON:
        raise Void(f"the record was made with Python {python}, but this is {PYTHON}: use that version to lower it")
    operations = {name: count._asdict() for name, count in lower_counts(measured, read_record(path)).items()}
    path.write_text(json.dumps({"python": python, "operations": operations}, indent=2) + "\n", "utf-8")
