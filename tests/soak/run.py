"""A run: traffic and faults for a while, its status meanwhile, and its verdict in the end."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tests.soak.faults import Faults
from tests.soak.landscape import Landscape
from tests.soak.ledger import Lag
from tests.soak.usage import MEGABYTE, Sample, Trend, find_growth, make_trend, read_usage

STATUS_SECONDS = 30.0
SAMPLE_SECONDS = 2.0
SAMPLES = 2000
"""Max samples of each process. A long run takes them less often."""
WARM_SHARE, WARM_SECONDS = 0.2, 60.0
"""The warm-up of a run: a fraction of it, and its max seconds."""
DRAIN_SECONDS = 120.0
"""Seconds without progress after which the remaining messages count as lost."""


class Run:
    """A soak run.

    Args:
        landscape: The running programs.
        seed: Seeds the faults.
        stop: Ends the run early, in order.
    """

    def __init__(self, landscape: Landscape, seed: int, stop: threading.Event) -> None:
        self._landscape = landscape
        self._stop = stop
        self._faults = Faults(landscape, seed)
        self._series = defaultdict[str, list[Sample]](list)
        self._longest: dict[str, Lag] = {}
        self._problems: dict[str, None] = {}
        self._began = time.monotonic()
        self._load: list[float] = []
        self._seconds = 0.0
        self._drained_after = 0.0

    def perform(self, seconds: float) -> None:
        for traffic in self._landscape.traffic:
            traffic.start()
        self._faults.start()
        self._watch_until(seconds)
        self._faults.end()
        self._seconds = self._measure_elapsed()
        for traffic in self._landscape.traffic:
            traffic.end_writers()
        self._drain()
        for traffic in self._landscape.traffic:
            traffic.end()
        for program in reversed(self._landscape.programs):
            if code := program.stop():
                self._problems[f"{program.name}: SIGTERM ended it with code {code}"] = None

    def _watch_until(self, seconds: float) -> None:
        pause, shown = max(SAMPLE_SECONDS, seconds / SAMPLES), 0.0
        while (passed := self._measure_elapsed()) < seconds and not self._stop.wait(min(pause, seconds - passed)):
            self._take_sample(passed)
            if passed >= shown + STATUS_SECONDS:
                shown += STATUS_SECONDS
                print(self._make_status(passed), flush=True)

    def _take_sample(self, passed: float) -> None:
        for process in self._landscape.watched:
            if process.pid is not None and (sample := read_usage(process.pid)):
                self._series[process.name].append(Sample(passed, sample))
        for name, lag in self._iterate_lags():
            self._longest[name] = max(lag, self._longest.get(name, lag), key=lambda each: each.seconds)
        for program in self._landscape.programs:
            if problem := program.find_problem():
                self._problems[problem] = None
        self._load.append(os.getloadavg()[0])

    def _iterate_lags(self) -> Iterator[tuple[str, Lag]]:
        for traffic in self._landscape.traffic:
            for name, lag in traffic.ledger.lags().items():
                yield f"{traffic.store}, {name}", lag

    def _make_status(self, passed: float) -> str:
        stored = " + ".join(f"{traffic.ledger.acknowledged:,}" for traffic in self._landscape.traffic)
        latest = {name: series[-1].usage for name, series in self._series.items()}
        name, lag = max(self._iterate_lags(), key=lambda pair: pair[1].seconds)
        total = [sum(values) for values in zip(*latest.values(), strict=True)]
        return (
            f"{passed:5.0f} s: {stored} acknowledged, {self._faults.counts.total()} faults, "
            f"longest lag {lag.messages:,} messages, {lag.seconds:.0f} s ({name}); "
            f"{total[0] // MEGABYTE:,} MB, {total[1]:,} handles, {total[2]:,} threads; load {self._load[-1]:.1f}"
        )

    def _drain(self) -> None:
        """Waits until nothing remains, or no progress was made for a while. What then remains is a problem."""
        began = progress = self._measure_elapsed()
        least = float("inf")
        while self._measure_elapsed() < progress + DRAIN_SECONDS:  # bounded: by progress
            remaining = sum(self._count_remaining().values())
            if not remaining:
                break
            if remaining < least:
                least, progress = remaining, self._measure_elapsed()
            time.sleep(0.2)
        self._drained_after = self._measure_elapsed() - began
        self._problems |= {
            f"{name}: {count:,} messages were left": None for name, count in self._count_remaining().items()
        }

    def _count_remaining(self) -> dict[str, int]:
        """Returns the remaining messages by our own count; if none remain, by the services' count."""
        remaining = {name: lag.messages for name, lag in self._iterate_lags()}
        if not any(remaining.values()):
            for traffic in self._landscape.traffic:
                remaining |= {f"{traffic.store}, {name}": count for name, count in traffic.count_remaining().items()}
        return {name: count for name, count in remaining.items() if count}

    def _measure_elapsed(self) -> float:
        return time.monotonic() - self._began

    def trends(self) -> dict[str, Trend]:
        warm = min(WARM_SHARE * self._seconds, WARM_SECONDS)
        trends_ = {name: make_trend(series, warm) for name, series in self._series.items()}
        return {name: each for name, each in trends_.items() if each is not None}

    def violations(self) -> list[str]:
        problems = [*self._problems, *self._faults.failures]
        for traffic in self._landscape.traffic:
            problems += traffic.failures
            problems += [f"{traffic.store}, {text}" for text in traffic.ledger.violations()]
        trends = self.trends()
        for process, allowances in self._landscape.watched.items():
            if process.name in trends:
                problems += find_growth(process.name, trends[process.name], allowances)
            else:
                problems.append(f"{process.name} did not run long enough to be watched")
        return problems

    def report(self) -> Mapping[str, Any]:
        return {
            "seconds": round(self._seconds),
            "drained after seconds": round(self._drained_after, 1),
            "processors": os.cpu_count(),
            "load, average and highest": [round(sum(self._load) / len(self._load), 1), max(self._load)],
            "acknowledged": {traffic.store: traffic.ledger.acknowledged for traffic in self._landscape.traffic},
            "faults": dict(sorted(self._faults.counts.items())),
            "consumers": {
                name: {
                    "seen": seen,
                    "moved": moved[consumer],
                    "longest lag, seconds": round(self._longest[name].seconds, 1),
                }
                for traffic in self._landscape.traffic
                for moved in [traffic.ledger.moved()]
                for consumer, seen in traffic.ledger.seen().items()
                for name in [f"{traffic.store}, {consumer}"]
            },
            "processes": {
                name: {part: usage._asdict() for part, usage in each._asdict().items()}
                for name, each in sorted(self.trends().items())
            },
            "violations": self.violations(),
        }
