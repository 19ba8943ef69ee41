"""Web processes of the last recorded version and of this one serve one keyspace side by side, as during an upgrade.

Most tests break nodes, connections and web processes meanwhile, and judge all answers together.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.crashes import test_keyed_posts, test_named, test_names_in_order
from tests.acceptance.crashes.conftest import Start, make_account
from tests.faults.claiming.run import ClaimRun
from tests.faults.message_run import MessageRun
from tests.faults.test_messages import DEATHS, LATE, LIMITS, SPAN, WRITES_LATE
from tests.faults.webs import PRESENT, MakeStore, Program
from tests.harness.history import running
from tests.harness.nemesis import Step, Wave, inflict
from tests.harness.plans import Plan, Record, plans, verify
from tests.servers.served import Served

pytestmark = pytest.mark.slow

CUTS: Wave = (Step("cut", "proxy-1", LATE), Step("silence", "proxy-2", LATE, at=0.5))
FEW_MESSAGES = {"acknowledged": 100, "shown": 300, "during_faults": 8}
FEW_CLAIMS = {"acknowledged": 25, "again": 2, "acknowledgements done": 25}
"""Minimum counts of a run."""
KILLS = 4
"""Number of web processes killed while names are used and keyed posts are sent."""


@plans("messages/versions", Plan(1, "three-waves", least=FEW_MESSAGES, slow=True))
def test_messages(
    tmp_path: Path, record_property: Record, three_proxied_nodes: MakeStore, release: Program, plan: Plan
) -> None:
    """Both versions accept posts, and readers take cursors of one to the other: nothing is missed or lost."""
    store = three_proxied_nodes(SPAN, difference=0.5, row_age=1.0)._replace(programs={"web-1": release})
    run = MessageRun(tmp_path, store, slowness=4.0, written={"three-waves": [WRITES_LATE, DEATHS, CUTS]})
    verify(plan, lambda: run.run(plan, limits=LIMITS, rest=0.7), record_property)


CLAIM_WAVES: list[Wave] = [
    (Step("pause", "web-1", 6.0), Step("pause", "node-2", 2.0, at=1.0), Step("kill", "web-4", 0.5, at=2.0)),
    (Step("kill", "node-3", 1.0), Step("pause", "web-2", 3.0, at=0.5), Step("kill", "web-3", 0.5, at=1.0)),
    CUTS,
]
"""The release runs in the processes with odd numbers."""


@plans("claims/versions", Plan(1, "three-waves", least=FEW_CLAIMS, slow=True))
def test_claims(
    tmp_path: Path, record_property: Record, three_proxied_nodes: MakeStore, release: Program, plan: Plan
) -> None:
    """Messages are claimed from one version and acknowledged, renewed or released at the other."""
    store = three_proxied_nodes(SPAN, difference=0.5, row_age=1.0)
    store = store._replace(programs={"web-1": release, "web-3": release})
    run = ClaimRun(tmp_path, store, webs=4, written={"three-waves": CLAIM_WAVES})
    verify(plan, lambda: run.run(plan, rest=0.7), record_property)


@pytest.fixture
def start(tmp_path: Path, three_proxied_nodes: MakeStore, proxied_keyspace: str, release: Program) -> Iterator[Start]:
    """Returns a function that starts services with an account, alternately of the release and of this version.

    The nodes are paused in turn during the test.
    """
    from queuey.storage import cassandra  # noqa: PLC0415 - most tests here do not need the driver

    store = three_proxied_nodes(SPAN, difference=0.5, row_age=1.0)
    with closing(cassandra.open_store(proxied_keyspace)) as opened:
        make_account(opened)
    programs = itertools.cycle([release, PRESENT])

    def start_next(port: int) -> Served:
        program = next(programs)
        return Served(tmp_path, store.options, port=port, variables=program.variables, program=program.words)

    with running([partial(pause_in_turn, [store.nodes[f"node-{number}"] for number in (1, 2, 3)])]):
        yield start_next


def pause_in_turn(nodes: Sequence[object], stop: threading.Event) -> None:
    for node in itertools.cycle(nodes):
        if stop.wait(2 * LATE):
            return
        inflict("pause", [node], LATE)


@pytest.mark.parametrize(
    "run", [test_keyed_posts.run, test_names_in_order.run, test_named.read_after_kills], ids=["keyed", "names", "named"]
)
def test_killed_and_replaced(start: Start, run: Callable[..., None]) -> None:
    """Keyed posts are stored once and names have one value at a time, whichever version replaces the other."""
    run(start, kills=KILLS, seed=1)
