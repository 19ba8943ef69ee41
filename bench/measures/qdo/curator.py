"""Compares puts and consumption of Curator's queues with Curator itself, on the same servers."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import curator_side
from bench.harness import Bench, Skip, Void, measure
from bench.load.traffic import BODY_BYTES
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import keepers
from deploy.local import CannotFetch, NoJava
from tests.servers import java_programs

SOURCE = Path(__file__).parents[2] / "baselines" / "CuratorQueues.java"
SERVERS = 3
GOAL = 0.5
MEMORY = ("-Xmx512m",)
SIDES = ("Python", "Java")
KINDS = {"with locks": True, "without": False}
_paths = (f"/bench/queue-{number}" for number in itertools.count())


class Sample(NamedTuple):
    """One run: messages per second put by one producer, and consumed by one consumer."""

    put: float
    consumed: float


@measure("curator", "Messages put into Curator's queues and consumed, against Curator itself")
def compare_with_curator(bench: Bench) -> Report:
    count = bench.count(1_000, 100)
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(keepers.zookeeper(bench, SERVERS)).connect_string
        commands = {
            "Python": [sys.executable, "-m", curator_side.__name__],
            "Java": _build_java(bench.new_directory("java")),
        }
        sides = {name: stack.enter_context(_run_program([*commands[name], hosts])) for name in SIDES}
        runs = {
            f"{kind}, {name}": partial(_put_and_consume, sides[name], count, locks=locks)
            for kind, locks in KINDS.items()
            for name in SIDES
        }
        for run in runs.values():
            run()
        samples = bench.interleave(runs, bench.count(7, 1))
    return _make_report(samples, count)


def _make_report(samples: dict[str, list[Sample]], count: int) -> Report:
    """Reports all samples, with the ratios of each pair of runs. Puts count for both kinds together."""
    rows, verdicts = [], []
    puts = {name: [run.put for kind in KINDS for run in samples[f"{kind}, {name}"]] for name in SIDES}
    figures: dict[str, dict[str, Sequence[float]]] = {"puts in the background": dict(puts)}
    for kind in KINDS:
        figures[f"consumed {kind}"] = {name: [run.consumed for run in samples[f"{kind}, {name}"]] for name in SIDES}
    for figure, sides in figures.items():
        rows += [Row(f"{figure}, {name}", sides[name], "messages/s") for name in SIDES]
        verdicts.append(Verdict(f"{figure}: Python / Java", pairwise_ratios(sides["Python"], sides["Java"]), goal=GOAL))
    notes = [
        f"{count:,} messages of {BODY_BYTES} B a run, a node each; one producer, then one consumer with one thread.",
        f"{SERVERS} servers on this machine, with an fsync of each for each write.",
    ]
    return Report("", "", rows, verdicts, notes)


def _build_java(directory: Path) -> list[str]:
    try:
        return java_programs.build(SOURCE, java_programs.CURATOR, directory, MEMORY)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"needs Curator: {error}") from error


@contextlib.contextmanager
def _run_program(command: Sequence[str]) -> Iterator[java_programs.JavaProgram]:
    program = java_programs.JavaProgram(list(command), lambda line: line[0].isdigit())
    try:
        yield program
    finally:
        program.close()


def _put_and_consume(side: java_programs.JavaProgram, count: int, *, locks: bool) -> Sample:
    """Puts ``count`` messages into a new queue, then consumes them. Raises Void if the program ended."""
    path = next(_paths)
    lock_path = f"{path}-locks" if locks else "-"
    try:
        side.tell(f"put {path} {count} {BODY_BYTES}")
        put = float(side.read_answer())
        side.tell(f"consume {path} {lock_path} {count}")
        return Sample(count / put, count / float(side.read_answer()))
    except (AssertionError, OSError) as error:
        raise Void(f"a program ended: {error}") from error
