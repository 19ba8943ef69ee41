"""Claims in two data centres that are cut off from each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.claiming.run import ClaimRun
from tests.faults.webs import Span
from tests.harness.nemesis import Step
from tests.harness.plans import Plan, Record, plans, verify

if TYPE_CHECKING:
    from tests.faults.centres import Centres

WAVES = [(Step("cut", "link", 4.0),), (Step("cut", "link", 2.0), Step("pause", "web-1", 5.0, at=1.0))]


@plans(
    "claims/two-centres",
    Plan(1, "two-waves", least={"acknowledged": 25, "acknowledgements done": 25, "faults": 3}, slow=True),
)
def test_cut_off(tmp_path: Path, record_property: Record, centres: Centres, centres_keyspace: str, plan: Plan) -> None:
    """In a queue whose writes reach both data centres, web processes in each of them never hand out a message twice."""
    from tests.faults.cluster import prepare_store_between  # noqa: PLC0415 - most tests here do not need the driver

    store = prepare_store_between(centres, centres_keyspace, Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    run = ClaimRun(tmp_path, store, webs=2, consistency="very_strong", written={"two-waves": WAVES})
    verify(plan, lambda: run.run(plan, rest=2.0), record_property)
