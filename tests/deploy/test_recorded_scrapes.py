"""The alerts on what a service of two workers really writes, scrape after scrape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuey.metrics import Metrics, Snapshot, make_exposition, make_snapshot
from queuey.storage import Store, bridge
from queuey.storage.sqlite import open_store
from tests.deploy.recording import series
from tests.deploy.test_prometheus import RULES, promtool, with_promtool

SCRAPES = 80
"""Number of scrapes, one every 15 s."""
ROUTE = "v1.queue"


class Recorder:
    """A service of two workers over a store, which is scraped every 15 s."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.workers = [Metrics(), Metrics()]
        self.scrapes: list[bytes] = []

    def scrape(self, asked: int | None) -> None:
        """Records a scrape: of all workers, or as if the one that is scraped did not know of the other."""
        snapshots = [make_snapshot(metrics, bridge.run(self.store.statistics())) for metrics in self.workers]
        workers: dict[str, Snapshot | None] = dict(zip("12", snapshots, strict=True))
        self.scrapes.append(make_exposition(workers if asked is None else {"": snapshots[asked]}))

    def series(self) -> list[dict[str, str]]:
        return series(self.scrapes, job="queuey", instance="web-1:5000")


def evaluate(directory: Path, series: list[dict[str, str]], speaking: dict[str, dict[str, Any]]) -> None:
    """Has promtool evaluate all alerts at the end; fails unless exactly these fire, with these labels."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    cases = []
    for rule in rules:
        case: dict[str, Any] = {"alertname": rule["alert"], "eval_time": f"{15 * (SCRAPES - 1)}s", "exp_alerts": []}
        if rule["alert"] in speaking:
            case["exp_alerts"].append(speaking[rule["alert"]])
        cases.append(case)
    tests = [{"interval": "15s", "input_series": series, "alert_rule_test": cases}]
    content = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests}
    (directory / "recorded.yml").write_text(yaml.safe_dump(content, width=1_000_000))
    promtool("test", "rules", directory / "recorded.yml")


@pytest.fixture
def record(tmp_path: Path) -> Callable[[Callable[[Recorder, int], None]], list[dict[str, str]]]:
    """Records a service's scrapes, one after each step of its history."""

    def run(step: Callable[[Recorder, int], None], asked: Callable[[int], int | None] = lambda _: None) -> Any:  # noqa: ANN401
        store = open_store(tmp_path / "data")
        try:
            recorder = Recorder(store)
            for number in range(SCRAPES):
                step(recorder, number)
                recorder.scrape(asked(number))
            return recorder.series()
        finally:
            store.close()

    return run


def work(recorder: Recorder, number: int) -> None:
    """Lets both workers answer, the second one far more. At first the store is busy, mostly for the second."""
    for metrics, times, refused in zip(recorder.workers, (20, 400), (1, 2000), strict=True):
        for _ in range(times):
            metrics.count_request(ROUTE, 200, 0.002)
        for _ in range(refused if number == 0 else 0):
            metrics.count_request(ROUTE, 503, 0.002)


def lose_a_worker(recorder: Recorder, number: int) -> None:
    """Lets both workers answer as in :func:`work`. The second one is replaced at each twentieth step."""
    if number % 20 == 19:
        recorder.workers[1] = Metrics()
    work(recorder, number)


@with_promtool
@pytest.mark.parametrize("step", [work, lose_a_worker])
def test_a_service_that_is_well(record: Any, tmp_path: Path, step: Callable[[Recorder, int], None]) -> None:  # noqa: ANN401
    """No alert fires for two healthy workers, however unlike, or for one that is replaced."""
    evaluate(tmp_path, record(step), {})


@with_promtool
def test_scrapes_of_one_worker_at_a_time(record: Any, tmp_path: Path) -> None:  # noqa: ANN401
    """Of scrapes that show now one worker, now the other, the alerts would make a trouble that was over long ago."""
    with pytest.raises(AssertionError, match="QueueyUnavailableAnswers"):
        evaluate(tmp_path, record(work, lambda number: number // 2 % 2), {})


def fail(recorder: Recorder, number: int) -> None:
    work(recorder, number)
    for _ in range(25):
        recorder.workers[1].count_request(ROUTE, 503, 0.002)


@with_promtool
def test_a_service_that_refuses(record: Any, tmp_path: Path) -> None:  # noqa: ANN401
    """503 of one worker is an alert about the service, once, with the rate over all workers."""
    summary = "web-1:5000 answers 1.667 requests a second with 503, above one in a hundred"
    about = "The store was unreachable or slow, the process is overloaded, or there are too many long polls."
    expected = {
        "exp_labels": {"instance": "web-1:5000", "severity": "page"},
        "exp_annotations": {"summary": summary, "description": about},
    }
    evaluate(tmp_path, record(fail), {"QueueyUnavailableAnswers": expected})
