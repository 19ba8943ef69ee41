"""Tests of the doctor's findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from queuey.messages import Finding
from queuey.storage.cassandra.admin import doctor_rules
from queuey.storage.cassandra.admin.node_settings import Node, make_acknowledgement
from queuey.storage.cassandra.driver import Host
from queuey.storage.cassandra.options import STRONG, VERY_STRONG, WEAK, CassandraOptions, DataCentreTarget
from queuey.storage.sqlite.doctor import judge_free_space, judge_mount

THREE_NODES = [Host("n1", "a", up=True), Host("n2", "a", up=True), Host("n3", "a", up=True)]
TWO_CENTRES = [Host("n1", "a", up=True), Host("n2", "b", up=True)]
NODE = Node("n1", "group", 10.0, 10_800.0, "v2")


def states(findings: list[Finding]) -> list[str]:
    return [finding.state for finding in findings]


def levels(**changed: tuple[str | None, str | None]) -> CassandraOptions:
    plain = {"weak": WEAK, "strong": STRONG, "very_strong": VERY_STRONG}
    return CassandraOptions(
        levels={
            name: replace(level, write=changed[name][0], read=changed[name][1]) if name in changed else level
            for name, level in plain.items()
        }
    )


def test_a_node_that_is_down_is_named() -> None:
    """With all nodes up the check passes; a node that is down is a warning with its address."""
    assert doctor_rules.judge_nodes(THREE_NODES).state == "ok"
    findings = doctor_rules.judge_nodes([*THREE_NODES[:2], Host("n3", "a", up=False)])
    assert (findings.state, "n3" in findings.text) == ("warn", True)


def test_what_cannot_be_checked() -> None:
    """A check that fails while nodes are down names the nodes; with all nodes up it names the user's permissions."""
    reason = "Cassandra has too few replicas alive (1 of 2 needed)"
    lost = doctor_rules.judge_unanswered("schema", reason, [*THREE_NODES[:2], Host("n3", "a", up=False)])
    assert (lost.check, lost.state, reason in lost.text) == ("schema", "fail", True)
    assert ("n3" in lost.advice, "may read" in lost.advice) == (True, False)
    assert "may read" in doctor_rules.judge_unanswered("schema", reason, THREE_NODES).advice


@pytest.mark.parametrize(
    ("versions", "state"),
    [
        ({"n1": "5.0.6", "n2": "5.0.6"}, "ok"),
        ({"n1": "5.0.6", "n2": "4.1.3"}, "warn"),
        ({"n1": "4.0.11"}, "warn"),
        ({"n1": "4.1-alpha1"}, "ok"),
        ({"n1": "5.1.0-SNAPSHOT"}, "ok"),
    ],
)
def test_versions(versions: dict[str, str], state: str) -> None:
    """Different versions, and versions that are too old, are warnings."""
    assert doctor_rules.judge_versions(versions).state == state


@pytest.mark.parametrize(
    ("copies", "hosts", "state"),
    [
        ({"a": 3}, THREE_NODES, "ok"),
        ({"": 3}, THREE_NODES, "ok"),
        ({"a": 1}, THREE_NODES, "warn"),
        ({"a": 2}, THREE_NODES, "warn"),
        ({"a": 3}, THREE_NODES[:2], "warn"),
        ({"a": 3}, THREE_NODES[:1], "fail"),
        ({"elsewhere": 3}, THREE_NODES, "fail"),
        ({"": 2}, TWO_CENTRES, "warn"),
    ],
)
def test_replication(copies: dict[str, int], hosts: list[Host], state: str) -> None:
    """A single copy, more copies than nodes, and copies placed without regard to data centres are reported."""
    assert doctor_rules.judge_replication(copies, hosts)[0].state == state


def test_default_levels_are_sound() -> None:
    """The default levels keep their promises, in one data centre and in several."""
    for copies in ({"": 3}, {"a": 3}, {"a": 3, "b": 3}, {"a": 1}):
        assert states(doctor_rules.judge_levels(CassandraOptions(), copies)) == ["ok"] * 4


def test_levels_whose_reads_miss_writes_fail() -> None:
    """A level whose reads may miss its writes is a failure, unless it promises nothing."""
    findings = doctor_rules.judge_levels(levels(strong=("ONE", "ONE"), weak=("ONE", "ONE")), {"a": 3})
    assert states(findings) == ["ok", "fail", "ok", "ok"]
    assert "consistency.strong" in findings[1].advice


def test_very_strong_must_hold_in_every_data_centre() -> None:
    """EACH_QUORUM with reads at a low level is a failure; so is a catalogue agreed on in one data centre only."""
    options = replace(
        levels(very_strong=("EACH_QUORUM", "LOCAL_ONE")), catalogue_write="LOCAL_QUORUM", catalogue_read="LOCAL_QUORUM"
    )
    assert states(doctor_rules.judge_levels(options, {"a": 3, "b": 3})) == ["ok", "ok", "fail", "warn"]


@pytest.mark.parametrize(
    ("modes", "level", "state"),
    [(["group"], "fsync", "ok"), (["batch", "group"], "fsync", "ok"), (["group", "periodic"], "replicated", "warn")],
)
def test_the_weakest_node_says_what_an_acknowledgement_means(modes: list[str], level: str, state: str) -> None:
    """One node that syncs periodically weakens every acknowledgement, and its period is shown."""
    nodes = [NODE._replace(sync=mode) for mode in modes]
    assert make_acknowledgement(nodes).level == level
    findings = doctor_rules.judge_sync(nodes)
    assert findings.state == state
    assert ("10 s" in findings.text, "group" in findings.advice) == (state == "warn", state == "warn")


@pytest.mark.parametrize(
    ("ahead", "state"),
    [
        ({"n1": 0.01, "n2": -0.02, "n3": 0.0}, "ok"),
        ({"n1": 0.35, "n2": 0.35, "n3": 0.35}, "warn"),
        ({"n1": -0.51, "n2": -0.51, "n3": -0.51}, "fail"),
        ({"n1": 0.0, "n2": 0.0, "n3": 5.0}, "warn"),
    ],
)
def test_clocks(ahead: dict[str, float], state: str) -> None:
    """This machine's clock is compared with the median, as the service does; a single node that is off is a warning."""
    assert doctor_rules.judge_clocks(ahead, 1.0).state == state


def test_paxos_and_grace() -> None:
    """The old Paxos is a warning; a table whose grace period is shorter than late writes need is a failure."""
    assert doctor_rules.judge_paxos([NODE]).state == "ok"
    assert doctor_rules.judge_paxos([NODE, NODE._replace(paxos="v1")]).state == "warn"
    assert doctor_rules.judge_grace({"t": 864_000, "u": 10_800}, 10_800.0).state == "ok"
    findings = doctor_rules.judge_grace({"t": 864_000, "u": 0}, 10_800.0)
    assert (findings.state, "u" in findings.text.split(": ")[1]) == ("fail", True)


@pytest.mark.parametrize(
    ("hosts", "options", "state"),
    [
        (("127.0.0.1", "localhost"), CassandraOptions(), "ok"),
        (("10.0.0.1",), CassandraOptions(), "warn"),
        (("10.0.0.1",), CassandraOptions(user="u", password="p"), "warn"),
        (("10.0.0.1",), CassandraOptions(user="u", password="p", tls=True), "ok"),
    ],
)
def test_access(hosts: tuple[str, ...], options: CassandraOptions, state: str) -> None:
    """Connections over a network without password or encryption are warnings; the password is not shown."""
    findings = doctor_rules.judge_access(DataCentreTarget(hosts, "k"), options)
    assert (findings.state, options.password == "p" and "p" in findings.text.split()) == (state, False)


@pytest.mark.parametrize(("free", "state"), [(0, "fail"), (3 << 20, "warn"), (1 << 30, "ok")])
def test_room(free: int, state: str) -> None:
    """Less room than a post needs is a failure, less than the log may need a warning."""
    assert judge_free_space(free).state == state


def test_network_file_systems_are_refused() -> None:
    """The innermost mount counts, and a network file system is a failure; names with spaces are understood."""
    mounts = (
        "/dev/sda / ext4 rw 0 0\nserver:/x /srv/my\\040data nfs4 rw 0 0\n/dev/sdb /srv/my\\040data/here xfs rw 0 0\n"
    )
    assert judge_mount(Path("/home/me"), mounts).state == "ok"
    assert judge_mount(Path("/srv/my data/there"), mounts).state == "fail"
    assert judge_mount(Path("/srv/my data/here/x"), mounts).state == "ok"


def test_read_repair() -> None:
    """The table of sessions needs read repair, because quorum reads rely on it; other tables, and the default, pass."""
    assert doctor_rules.judge_read_repair({"group_sessions": "BLOCKING", "queues": "NONE"}).state == "ok"
    findings = doctor_rules.judge_read_repair({"group_sessions": "NONE"})
    assert (findings.state, "group_sessions (NONE)" in findings.text) == ("fail", True)
