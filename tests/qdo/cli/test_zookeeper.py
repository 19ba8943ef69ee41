"""Commands for a group on ZooKeeper."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from queuey.client import Client
from tests.commands import Run
from tests.qdo.cli.conftest import GROUP, Group
from tests.qdo.cli.workers import SECONDS, Hire, wait_until_caught_up
from tests.servers.plugin import ZooKeeper, unique_name
from tests.servers.served import Served, environment


@pytest.fixture
def group(zookeeper: ZooKeeper, served: Served) -> Group:
    """A chroot for the test."""
    return Group(f"zookeeper://{zookeeper.connect_string}/{unique_name('cli')}", f"127.0.0.1:{served.port}")


def test_from_first_message_to_forgotten_group(
    served: Served, group: Group, run: Run, client: Client, queue: str, tmp_path: Path
) -> None:
    """Two workers share a queue; one is killed and the other gets it all; then the group is moved and forgotten."""
    variables = {"QUEUEY_PROFILE": str(served.profile_path), "QDO_COORDINATION": group.url, "QDO_GROUP": GROUP}
    hire = Hire(tmp_path, environment(**variables, QDO_SESSION_TIMEOUT="8"))
    with hire("handlers:handle", "--queue", queue) as one, hire("handlers:handle", "--queue", queue) as other:
        deadline = time.monotonic() + 2 * SECONDS
        while len({line["owner"] for line in run("status", "--json", "--no-lag").json["partitions"]} - {None}) < 2:
            assert {one.process.poll(), other.process.poll()} == {None}
            assert time.monotonic() < deadline
        first = [client.send(queue, "first", partition=number) for number in (1, 2, 3)]
        wait_until_caught_up(run)
        one.process.kill()
        second = [client.send(queue, "second", partition=number) for number in (1, 2, 3)]
        wait_until_caught_up(run)
        assert len(run("status", "--json").json["members"]) == 1
        assert run("offsets", "reset", "latest").code == 1
        assert other.end() == 0
        one.wait_for_end()
        handled = [*one.read_remaining_lines(), *other.read_remaining_lines()]
    assert sorted({line for line in handled if "first" in line}) == [f"handled {number} first" for number in (1, 2, 3)]
    assert sorted(line for line in handled if "second" in line) == [f"handled {number} second" for number in (1, 2, 3)]
    assert group.offsets() == {(queue, number): second[number - 1].id for number in (1, 2, 3)}
    assert run("offsets", "seek", "--to", first[0].id, "--partition", "1").code == 0
    assert group.offsets()[queue, 1] == first[0].id
    assert run("groups", "--json").json == {"group": GROUP, "members": 0, "partitions": 3}
    assert run("offsets", "forget", "--yes").code == 0
    assert run("groups", "--json").out == b""


def test_an_ensemble_that_does_not_answer(run: Run) -> None:
    """A server that cannot be reached gives one line and code 1."""
    nowhere = "zookeeper://127.0.0.1:9/x?connect_timeout=0.5"
    ended = run("status", "--coordination", nowhere)
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
