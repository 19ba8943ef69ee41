"""``queuey serve`` and the commands beside it on a real Cassandra, and without one."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from queuey.client import Client
from queuey.storage.cassandra.cluster.options import DataCentreTarget
from tests.servers import keyspaces
from tests.servers.plugin import Cassandra, unique_name
from tests.servers.served import Served, run_queuey
from tests.waiting import PATIENCE_SECONDS

UNREACHABLE_STORE = "cassandra://127.0.0.1:1/nowhere"
PATIENCE = 60.0


class Reply(NamedTuple):
    """The answer of a URL of the service."""

    status: int
    body: str
    retry_after: str | None


def get_reply(served: Served, path: str) -> Reply:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}{path}", timeout=30) as reply:
            return Reply(reply.status, reply.read().decode(), reply.headers["Retry-After"])
    except urllib.error.HTTPError as error:
        return Reply(error.code, error.read().decode(), error.headers["Retry-After"])


def poll_heartbeat(served: Served, wanted: Callable[[Reply], bool]) -> Reply:
    """Polls the heartbeat until it is as expected, or for PATIENCE seconds; returns its last answer."""
    end = time.monotonic() + PATIENCE
    while not wanted(reply := get_reply(served, "/__heartbeat__")) and time.monotonic() < end:
        time.sleep(0.1)
    return reply


def findings_by_check(ended: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    report: Any = json.loads(ended.stdout)
    return {finding["check"]: finding for finding in report["findings"]}


@pytest.fixture(scope="module")
def url(cassandra: Cassandra) -> str:
    return keyspaces.make(cassandra)


@pytest.fixture(scope="module")
def served(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on that keyspace, with user directories of its own."""
    directory = tmp_path_factory.mktemp("on-cassandra")
    variables = {"HOME": str(directory / "home"), "XDG_DATA_HOME": str(directory / "home" / "data")}
    with Served(directory, ["--store", url], variables=variables) as running:
        yield running
        assert running.end(signal.SIGTERM) == 0
        assert "Traceback" not in running.output


def test_a_service_without_a_directory(served: Served, url: str) -> None:
    """The start names store and promise and how to make an application, and leaves nothing in any directory."""
    assert f"store {url}, acknowledged means " in served.lines[0]
    served.wait_for("queuey app create NAME")
    assert (served.data.exists(), served.profile_path.exists()) == (False, False)
    assert not (served.profile_path.parent / "home").exists()


def test_an_application_made_beside_it_works(served: Served, url: str) -> None:
    """The key that ``queuey app create --store`` prints opens the running service; revoked, it is listed no more."""
    made = json.loads(run_queuey("app", "create", "shop", "--store", url, "--json").stdout)
    with Client(f"http://127.0.0.1:{served.port}", key=made["secret"], application="shop") as client:
        client.create_queue("orders")
        receipt = client.send("orders", "hello")
        assert [message.id for message in client.read("orders", delay=False).messages] == [receipt.id]
        assert "stay 1 s behind" in client.info("orders").guarantee
    listed = json.loads(run_queuey("app", "list", "--store", url, "--json").stdout)
    assert {"application": "shop", "keys": 1} in listed
    assert run_queuey("app", "revoke", "shop", made["key"], "--yes", "--store", url).returncode == 0
    assert json.loads(run_queuey("app", "keys", "shop", "--store", url, "--json").stdout) == []


def test_the_doctor_on_a_cluster(url: str) -> None:
    """On a cluster that works every check has its line; what a test cluster lacks is a warning, not a failure."""
    ended = run_queuey("doctor", "--store", url, "--json")
    states = findings_by_check(ended)
    assert ended.returncode == 0, ended.stdout
    assert states.keys() == {
        *("nodes", "access", "version", "clocks", "acknowledged", "paxos"),
        *("replication", "levels", "schema", "gc_grace", "read_repair", "timing", "store"),
    }
    assert (states["replication"]["state"], states["schema"]["state"], states["store"]["state"]) == ("warn", "ok", "ok")
    assert states["read_repair"]["state"] == "ok"
    lines = run_queuey("doctor", "--store", url).stdout.splitlines()
    assert {line[:4].strip() for line in lines} == {"ok", "warn", ""}


def test_the_doctor_names_the_data_centres(url: str) -> None:
    """A missing data centre is reported, with the existing ones."""
    ended = run_queuey("doctor", "--store", url, "--cassandra-local-dc", "no-such-centre")
    assert (ended.returncode, "'no-such-centre', only " in ended.stdout) == (1, True), ended.stdout


def test_a_keyspace_that_is_made_while_it_runs(cassandra: Cassandra, tmp_path: Path) -> None:
    """Without its keyspace a service answers 503 and says which command makes it; then it serves, without a restart."""
    target = DataCentreTarget(tuple(cassandra.contact_points), unique_name("late"), cassandra.port)
    ended = run_queuey("doctor", "--store", target.url, "--json")
    assert (ended.returncode, "queuey migrate" in findings_by_check(ended)["schema"]["advice"]) == (1, True)
    with Served(tmp_path, ["--store", target.url]) as served:
        red = poll_heartbeat(served, lambda reply: "queuey migrate" in reply.body)
        assert (red.status, "queuey migrate" in red.body) == (503, True), red
        made = run_queuey("migrate", "--store", target.url, "--replication", "1")
        assert made.returncode == 0, made.stderr
        assert poll_heartbeat(served, lambda reply: reply.status == 200).status == 200
        assert served.end(signal.SIGTERM) == 0


def test_a_service_without_cassandra(tmp_path: Path) -> None:
    """It starts, says why nothing works, once and without a traceback, and answers 503 with Retry-After at once."""
    with Served(tmp_path, ["--store", UNREACHABLE_STORE, "--workers", "1"]) as served:
        red = poll_heartbeat(served, lambda reply: "refused" in reply.body)
        assert (red.status, red.retry_after is not None, "refused" in red.body) == (503, True, True), red
        assert get_reply(served, "/__lbheartbeat__").status == 200
        assert get_reply(served, "/v1/queuey/any").status in {403, 503}
        with Client(f"http://127.0.0.1:{served.port}", key="k") as client, pytest.raises(Exception, match="503"):
            client.create_queue("q")
        assert served.end(signal.SIGTERM) == 0
    reasons = [line for line in served.lines if "Connection refused" in line]
    assert len(reasons) == 2, served.output  # one for the user who started it, one in the worker's log
    assert "Traceback" not in served.output
    assert not served.data.exists()


def test_commands_without_cassandra() -> None:
    """Commands that need the store fail with one line that says why."""
    with ThreadPoolExecutor() as at_once:  # Each waits for Cassandra for a while before it gives up.
        listing = at_once.submit(run_queuey, "app", "list", "--store", UNREACHABLE_STORE)
        examination = at_once.submit(run_queuey, "doctor", "--store", UNREACHABLE_STORE)
    ended = listing.result(PATIENCE_SECONDS)
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, "refused" in line, ended.stdout) == (1, True, "")
    ended = examination.result(PATIENCE_SECONDS)
    assert (ended.returncode, ended.stdout.startswith("fail  nodes")) == (1, True)
