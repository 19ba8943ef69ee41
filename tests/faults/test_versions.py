"""Web processes of the last release and of this version serve one keyspace side by side, as during an upgrade.

Most tests break nodes, connections and web processes meanwhile, and judge all answers together.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from packaging.version import Version

from queuey.client import Client, RetryPolicy, ServerError
from tests.acceptance.crashes import test_keyed_posts, test_named, test_names_in_order
from tests.acceptance.crashes.conftest import APP, KEY, Start, make_account
from tests.faults.claiming.run import ClaimRun
from tests.faults.message_run import MessageRun
from tests.faults.test_messages import DEATHS, LATE, LIMITS, SPAN, WRITES_LATE
from tests.faults.webs import PRESENT, MakeStore, Program
from tests.faults.wire import Account, Answer, Line, Web
from tests.harness.history import running
from tests.harness.nemesis import Step, Wave, hit
from tests.harness.plans import Plan, Record, plans, verify
from tests.pages import ROOT
from tests.releases import recording
from tests.servers import keyspaces
from tests.servers.plugin import unique_name
from tests.servers.served import Served, environment
from tests.waiting import until

pytestmark = pytest.mark.slow

RELEASE = max(recording.COMMITS, key=Version)
VERSION_SECONDS = 100.0
CUTS: Wave = (Step("cut", "proxy-1", LATE), Step("silence", "proxy-2", LATE, at=0.5))
FEW_MESSAGES = {"acknowledged": 100, "shown": 300, "during_faults": 8, "over_loop_during_faults": 100}
FEW_CLAIMS = {"acknowledged": 25, "again": 2, "acknowledgements done": 25, "over_loop_during_faults": 40}
"""What a run must have seen at least."""
KILLS = 4
"""Number of web processes that are killed while names are used and keyed posts are made."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The service of the last release, from its commit, with the packages of this environment."""
    tree = tmp_path_factory.mktemp("release")
    recording.check_out(RELEASE, tree)
    # A release that runs goes on in a keyspace that is migrated meanwhile, but it does not start in one whose changes
    # it does not know. So it knows the files of the later ones, and nothing else of them.
    for change in (ROOT / "cql").glob("*.cql"):
        if not (tree / "cql" / change.name).exists():
            shutil.copy(change, tree / "cql")
    # With -P Python does not look into the working directory, where this version is.
    program = Program((sys.executable, "-P", "-m", "queuey"), {"PYTHONPATH": str(tree)})
    command, variables = [*program.words, "--version"], environment(**program.variables)
    told = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=VERSION_SECONDS)
    assert RELEASE in told.stdout
    return program


@plans("messages/versions", Plan(1, "three-waves", least=FEW_MESSAGES, slow=True))
def test_messages(
    tmp_path: Path, record_property: Record, three_proxied_nodes: MakeStore, release: Program, plan: Plan
) -> None:
    """Both versions take posts, and readers take the cursors of one to the other: nothing is missed or lost."""
    store = three_proxied_nodes(SPAN, difference=0.5, row_age=1.0)._replace(programs={"web-1": release})
    run = MessageRun(tmp_path, store, slowness=4.0, written={"three-waves": [WRITES_LATE, DEATHS, CUTS]})
    verify(plan, lambda: run.run(plan, limits=LIMITS, rest=0.7), record_property)


CLAIM_WAVES: list[Wave] = [
    (Step("pause", "web-1", 6.0), Step("pause", "node-2", 2.0, at=1.0), Step("kill", "web-4", 0.5, at=2.0)),
    (Step("kill", "node-3", 1.0), Step("pause", "web-2", 3.0, at=0.5), Step("kill", "web-3", 0.5, at=1.0)),
    CUTS,
]
"""The release serves with the odd numbers."""


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
    """Starts services alternately of the release and of this version, while one node after another is paused."""
    from queuey.storage import cassandra  # noqa: PLC0415 - only who uses it needs the driver

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
    """Pauses one node after another, with a rest between."""
    for node in itertools.cycle(nodes):
        if stop.wait(2 * LATE):
            return
        hit("pause", [node], LATE)


@pytest.mark.parametrize(
    "run", [test_keyed_posts.run, test_names_in_order.run, test_named.read_after_kills], ids=["keyed", "names", "named"]
)
def test_killed_and_replaced(start: Start, run: Callable[..., None]) -> None:
    """Keyed posts are stored once and names have one value at a time, whichever version takes over from the other."""
    run(start, kills=KILLS, seed=1)


def test_options_that_the_release_does_not_know(tmp_path: Path, contract_keyspace: str, release: Program) -> None:
    """It refuses claims of a queue whose expired messages become dead letters, loses nothing, and serves all others."""
    from queuey.storage import cassandra  # noqa: PLC0415 - only who uses it needs the driver

    keyspaces.empty(contract_keyspace)
    with closing(cassandra.open_store(contract_keyspace)) as opened:
        make_account(opened)
    store = ["--store", contract_keyspace]
    once, soon = RetryPolicy(rounds=1), 4
    with (
        Served(tmp_path / "old", store, variables=release.variables, program=release.words) as old,
        Served(tmp_path / "new", store) as new,
        Client(f"http://127.0.0.1:{old.port}", key=KEY, application=APP, retry=once) as former,
        Client(f"http://127.0.0.1:{new.port}", key=KEY, application=APP) as present,
    ):
        present.create_queue("kept", ttl=soon, on_ack="delete", on_expiry="dead-letter", result_ttl=60)
        present.create_queue("others")
        present.send("kept", "expires")
        with pytest.raises(ServerError, match="claim log"):
            former.job_queue("kept").receive()
        former.send("kept", "dropped")
        former.send("others", "served")
        assert former.job_queue("others").ack(former.job_queue("others").receive()) == []
        former.update_queue("kept", description="by the release")
        kept = present.info("kept")
        assert (kept.on_expiry, kept.result_ttl, kept.description) == ("dead-letter", 60, "by the release")
        dead = present.job_queue("kept.dead")
        until(lambda: "kept.dead" in present.queue_names() and dead.size().size, every=0.5)
        assert [letter.body for letter in dead.peek()] == ["expires"]


ZERO, FIRST_ID, SECOND_ID = (f"{number:08x}-0000-1000-8080-808080808080".replace("-", "") for number in range(3))
JSON = {"Content-Type": "application/json", "Accept": "application/problem+json"}


def test_groups(tmp_path: Path, contract_keyspace: str, release: Program) -> None:
    """It reads offsets of groups with members, refuses what members send, and knows no refusal of what others do."""
    from queuey.storage import cassandra  # noqa: PLC0415 - only who uses it needs the driver

    keyspaces.empty(contract_keyspace)
    with closing(cassandra.open_store(contract_keyspace)) as opened:
        make_account(opened)
    store = ["--store", contract_keyspace]
    group, account = unique_name("group"), Account(APP, KEY)
    with (
        Served(tmp_path / "old", store, variables=release.variables, program=release.words) as old,
        Served(tmp_path / "new", store) as new,
        closing(Line(Web("old", old.port), account)) as former,
        closing(Line(Web("new", new.port), account)) as present,
    ):

        def ask(line: Line, method: str, path: str, body: object = None) -> Answer:
            data = None if body is None else json.dumps(body).encode()
            return line.ask(method, path, body=data, headers=JSON, timeout=VERSION_SECONDS)

        def offsets(line: Line) -> list[object]:
            answer = ask(line, "GET", f"/jobs/offsets/{group}")
            assert answer.status == 200, answer
            return [each["offset"] for _, each in sorted(answer.content["partitions"].items())]

        def beat(owned: dict[str, int]) -> Answer:
            return ask(present, "POST", members + joined["member"], {"owned": {"jobs": owned}})

        def taken(owned: dict[str, int]) -> bool:
            """Sends a heartbeat; returns whether the member owns both partitions."""
            content = beat(owned).content
            for number in content.get("lost", {}).get("jobs", []):
                owned.pop(str(number))
            owned |= {number: each["epoch"] for number, each in content.get("take", {}).get("jobs", {}).items()}
            return len(owned) == 2

        assert ask(present, "POST", "", {"queue_name": "jobs", "partitions": 2}).status == 201
        members = f"/_groups/{group}/members/"
        join = {"queues": ["jobs"], "session": 60}
        assert ask(former, "POST", members[:-1], join).status == 404
        joined = ask(present, "POST", members[:-1], join).content
        owned: dict[str, int] = {}
        until(lambda: taken(owned), every=0.2)
        assert offsets(present) == [None, None]
        assert offsets(former) == [ZERO, ZERO]
        commit = {"member": joined["member"], "commits": {"1": {"epoch": owned["1"], "offset": FIRST_ID}}}
        assert ask(former, "PUT", f"/jobs/offsets/{group}", commit).status == 400
        assert offsets(present) == [None, None]
        assert ask(present, "PUT", f"/jobs/offsets/{group}", commit).status == 200
        assert ask(former, "POST", members + joined["member"], {"owned": {"jobs": owned}}).status == 404
        assert offsets(former) == [FIRST_ID, ZERO]
        plain = {"partitions": {"2": {"offset": SECOND_ID}}}
        refused = ask(present, "PUT", f"/jobs/offsets/{group}", plain)
        assert (refused.status, refused.content["code"]) == (409, "GroupActive")
        assert ask(former, "PUT", f"/jobs/offsets/{group}", plain).status == 200
        assert offsets(present) == [FIRST_ID, SECOND_ID]
        before = dict(owned)
        assert taken(owned)
        assert owned == before
        assert ask(former, "DELETE", f"/jobs/offsets/{group}").status in {200, 204}
        late = ask(present, "PUT", f"/jobs/offsets/{group}", commit)
        assert (late.status, late.content["code"]) == (409, "NotOwner")
        owned.clear()  # It drops what it does not own, and gets it anew: nobody else had it.
        until(lambda: taken(owned), every=0.2)
        assert owned == before
        assert offsets(present) == [None, None]
        commit["commits"] = {"1": {"epoch": owned["1"], "offset": SECOND_ID}}
        assert ask(present, "PUT", f"/jobs/offsets/{group}", commit).status == 200
        assert offsets(former) == [SECOND_ID, ZERO]
