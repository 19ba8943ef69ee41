"""The guarantees hold while connections between web processes and nodes are cut or stall."""

from __future__ import annotations

from pathlib import Path

from tests.faults.claiming.run import ClaimRun
from tests.faults.message_run import MessageRun
from tests.faults.test_messages import LATE, LIMITS, LONGER, SPAN
from tests.faults.webs import MakeStore
from tests.harness.nemesis import Step, Wave
from tests.harness.plans import Plan, Record, plans, verify

SILENCE = 8.0
"""Seconds. A client replaces a silent connection before this (``protocol/client.py``, ``HEARTBEAT_INTERVAL``)."""
WAVES: list[Wave] = [
    # A short cut, which loses all requests under way; and a cut long enough that attempts to connect fail.
    (Step("cut", "proxy-1", 0.1), Step("cut", "proxy-2", LATE, at=0.3), Step("cut", "proxy-1", 0.1, at=1.0)),
    # Requests arrive after their callers have given up.
    (Step("silence", "proxy-3", SILENCE), Step("cut", "proxy-1", LATE, at=SILENCE - LATE)),
    # One node is silent and another one paused; then all nodes are unreachable.
    (Step("silence", "proxy-2", LONGER), Step("pause", "node-1", LATE, at=0.5)),
    tuple(Step("cut", f"proxy-{number}", LATE) for number in (1, 2, 3)),
]
FEW_MESSAGES = {"acknowledged": 100, "shown": 300, "during_faults": 8}
FEW_CLAIMS = {"acknowledged": 25, "again": 2, "acknowledgements done": 25}
"""Minimum counts of a run."""


@plans("messages/cut-connections", Plan(1, "four-waves", least=FEW_MESSAGES, slow=True))
def test_messages(tmp_path: Path, record_property: Record, three_proxied_nodes: MakeStore, plan: Plan) -> None:
    """Two web processes post and read while their connections to nodes break: nothing is missed, lost or invented."""
    store = three_proxied_nodes(SPAN, difference=0.5, row_age=1.0)
    run = MessageRun(tmp_path, store, slowness=4.0, written={"four-waves": WAVES})
    verify(plan, lambda: run.run(plan, limits=LIMITS, rest=0.7), record_property)


@plans("claims/cut-connections", Plan(1, "four-waves", least=FEW_CLAIMS, slow=True))
def test_claims(tmp_path: Path, record_property: Record, three_proxied_nodes: MakeStore, plan: Plan) -> None:
    """Under the same faults no message is lost, claimed twice at once or delivered after its acknowledgement."""
    store = three_proxied_nodes(SPAN, difference=0.5, row_age=1.0)
    run = ClaimRun(tmp_path, store, webs=2, written={"four-waves": WAVES})
    verify(plan, lambda: run.run(plan, rest=0.7), record_property)
