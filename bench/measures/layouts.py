"""Measures how messages of many queues may lie in a SQLite file, without a service."""

from __future__ import annotations

import json
from functools import partial

from bench.baselines import layouts
from bench.harness import Bench, measure
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import processes

SIDES = {
    **{layout: (layout, 4096) for layout in layouts.LAYOUTS},
    **{f"{layouts.CLUSTERED}, pages of {size:,} B": (layouts.CLUSTERED, size) for size in (2048, 8192)},
}
"""Layout and page size."""
POST = "CPU of a post"


@measure("layouts", "Layouts of messages in SQLite: commits of 64 messages of random queues, and reads of one queue")
def compare_layouts(bench: Bench) -> Report:
    """Compares each layout with that of the store. A file has eight messages of each queue."""
    queues = bench.count(100_000, 1_000)
    sides = {name: partial(run_layout, bench, *side, queues) for name, side in SIDES.items()}
    samples = bench.interleave(sides, bench.count(3, 1))
    medians = {
        name: {figure: Row("", [run[figure] for run in runs], "").median for figure in runs[0]}
        for name, runs in samples.items()
    }
    rows = [Row(name, [run[POST] for run in runs], "µs", medians[name]) for name, runs in samples.items()]
    verdicts = [
        Verdict(f"{figure}: {name}", pairwise_ratios(values, [run[figure] for run in samples[layouts.CLUSTERED]]))
        for name, runs in samples.items()
        if name != layouts.CLUSTERED
        for figure in runs[0]
        if figure.startswith("CPU")
        for values in [[run[figure] for run in runs]]
    ]
    notes = [
        f"{queues:,} queues, {layouts.MESSAGES_PER_QUEUE} messages each, raw apsw, not synced.",
        "CPU in µs a message (with its share of the checkpoint) or a read; the first column is that of a post.",
        "Reads are of a queue whose messages lie between those of others. Ratios are to the store's layout.",
    ]
    return Report("", "", rows, verdicts, notes)


def run_layout(bench: Bench, layout: str, page_bytes: int, queues: int) -> dict[str, float]:
    path = bench.new_directory("layout") / "messages.sqlite3"
    printed = processes.run_module(layouts.__name__, layout, page_bytes, path, queues, seconds=300)
    figures: dict[str, float] = json.loads(printed)
    path.unlink()
    return figures
