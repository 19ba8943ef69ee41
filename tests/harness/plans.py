"""The fault runs: their names, the command that repeats each, and how a test carries one out."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

import msgspec
import pytest
from msgspec import Struct

from tests.harness import reports
from tests.harness.history import now
from tests.harness.results import Result, render_counts, too_few

RUNS = {
    "messages/sqlite": "tests/faults/test_messages.py::test_sqlite",
    "messages/cassandra": "tests/faults/test_messages.py::test_cassandra",
    "messages/cassandra-defaults": "tests/faults/test_messages.py::test_cassandra_with_defaults",
    "messages/cut-connections": "tests/faults/test_connections.py::test_messages",
    "messages/versions": "tests/faults/test_versions.py::test_messages",
    "messages/two-centres": "tests/faults/test_two_centres.py::test_writers_and_readers_on_both_sides",
    "messages/two-nodes-each": "tests/faults/test_two_centres.py::test_two_nodes_each",
    "claims/sqlite": "tests/faults/claiming/test_claims.py::test_sqlite",
    "claims/workers": "tests/faults/claiming/test_claims.py::test_workers_of_one_service",
    "claims/workers-cassandra": "tests/faults/claiming/test_claims.py::test_workers_on_cassandra",
    "claims/cassandra": "tests/faults/claiming/test_claims.py::test_cassandra",
    "claims/cassandra-defaults": "tests/faults/claiming/test_claims.py::test_cassandra_with_defaults",
    "claims/cut-connections": "tests/faults/test_connections.py::test_claims",
    "claims/versions": "tests/faults/test_versions.py::test_claims",
    "claims/two-centres": "tests/faults/claiming/test_two_centres.py::test_cut_off",
    "groups/service": "tests/qdo/faults/test_groups.py::test_service",
    "groups/services": "tests/qdo/faults/test_groups.py::test_services",
    "groups/processes": "tests/qdo/faults/test_groups.py::test_workers_of_one_service",
    "groups/cassandra": "tests/qdo/faults/test_groups.py::test_cassandra",
    "groups/zookeeper": "tests/qdo/faults/test_groups.py::test_zookeeper",
    "groups/coming-and-leaving-service": "tests/qdo/faults/test_leaving.py::test_workers_come_and_leave",
}
"""The test of each run."""
PLAN_VARIABLE = "FAULT_PLAN"
"""The environment variable that holds the plan of the run to repeat."""
SUMMARY_PROPERTY = "fault run"
"""The name of the pytest property under which a test records the summary of its run."""
DEFAULT_FAULT_MINUTES = 4.0
"""Minutes of each long run. ``FAULT_MINUTES`` overrides it."""

Record = Callable[[str, object], None]


class Plan(Struct, frozen=True):
    """The parameters of a run.

    Attributes:
        seed: Seeds the schedule of faults and the actions of clients.
        faults: Kinds of faults to draw from, separated by commas; or the name of a schedule written down in the test.
        seconds: How long faults go on. A written schedule has a duration of its own.
        least: Minimum of each count. A run that counts less shows nothing and fails.
        slow: Run it in ``make slow`` only.
        run: One of ``RUNS``.
    """

    seed: int
    faults: str
    seconds: float = 0.0
    least: dict[str, int] = {}
    slow: bool = False
    run: str = ""

    @property
    def line(self) -> str:
        seconds = f" --seconds {self.seconds:g}" if self.seconds else ""
        return f"python -m tests.harness {self.run} --seed {self.seed} --faults {self.faults}{seconds}"

    def kinds(self, possible: Collection[str]) -> list[str]:
        """Returns the kinds of faults to draw from, in alphabetical order.

        Raises:
            ValueError: This run cannot do one of the kinds, or ``seconds`` is missing.
        """
        requested = sorted(set(self.faults.split(",")))
        if unknown := set(requested).difference(possible):
            names = ", ".join(sorted(possible))
            raise ValueError(f"{self.run} has no faults {', '.join(sorted(unknown))}, only {names}")
        if self.seconds <= 0:
            raise ValueError(f"faults {self.faults} are drawn for some time: give --seconds")
        return requested


def plans(run: str, *usual: Plan) -> pytest.MarkDecorator:
    """Parametrizes the test of a run with its plans, or with the one plan that ``python -m tests.harness`` repeats."""
    chosen = [msgspec.structs.replace(plan, run=run) for plan in usual]
    if encoded := os.environ.get(PLAN_VARIABLE):
        plan = msgspec.json.decode(encoded, type=Plan)
        chosen = [plan] if plan.run == run else []
    slow = [pytest.mark.slow]
    return pytest.mark.parametrize(
        "plan", [pytest.param(plan, id=f"{plan.faults}-{plan.seed}", marks=slow * plan.slow) for plan in chosen]
    )


def verify(plan: Plan, run: Callable[[], Result], record: Record) -> Result:
    """Carries out a run, and writes its report even if it fails. Fails if a rule is broken or too little happened."""
    print(f"To repeat this run: {plan.line}")  # pytest shows this line when the test fails
    start = now()
    report = reports.Report(plan.run, plan.seed, plan.line)
    try:
        result = run()
        report = reports.complete_report(report, result)
        record(
            SUMMARY_PROPERTY,
            f"{plan.line}: {render_counts(result.counts)}; faults: {render_counts(result.fault_kinds)}",
        )
    except Exception as error:
        report = msgspec.structs.replace(report, violations=[f"run: {error!r}"])
        raise
    finally:
        reports.write(msgspec.structs.replace(report, seconds=round(now() - start, 1)))
    assert not result.violations, f"{plan.line}\n{result.explain()}"
    shortfalls = too_few({**result.counts, **result.fault_kinds}, plan.least)
    assert not shortfalls, f"{plan.line}\n{shortfalls}\n{result.explain()}"
    return result


def fault_minutes() -> float:
    return float(os.environ.get("FAULT_MINUTES", DEFAULT_FAULT_MINUTES))


def long_plan(seed: int, faults: str, least: Mapping[str, int], minute: float = 60.0) -> Plan:
    """Returns the plan of a long run, with ``minute`` seconds of faults for each of :func:`fault_minutes`.

    ``least`` is for :data:`DEFAULT_FAULT_MINUTES`, and scaled.
    """
    minutes = fault_minutes()
    return Plan(
        seed,
        faults,
        minute * minutes,
        {name: int(count * minutes / DEFAULT_FAULT_MINUTES) for name, count in least.items()},
        slow=True,
    )
