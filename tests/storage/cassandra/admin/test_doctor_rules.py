"""Tests of the doctor's findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from queuey.model.messages import Finding
from queuey.storage.cassandra.admin import doctor_rules
from queuey.storage.cassandra.admin.node_settings import Node, make_acknowledgement
from queuey.storage.cassandra.cluster import Host
from queuey.storage.cassandra.cluster.options import STRONG, VERY_STRONG, WEAK, CassandraOptions, DataCentreTarget
from queuey.storage.sqlite.doctor import judge_free_space, judge_mount
from tests.replacing import with_fields

THREE_NODES = [Host("n1", "a", up=True), Host("n2", "a", up=True), Host("n3", "a", up=True)]
TWO_CENTRES = [Host("n1", "a", up=True), Host("n2", "b", up=True)]
NODE_DOWN = [*THREE_NODES[:2], Host("n3", "a", up=False)]
NODE = Node("n1", "group", 10.0, 10_800.0, "v2")

FAR = DataCentreTarget(("10.0.0.1",), "k")
MOUNTS = "/dev/sda / ext4 rw 0 0\nserver:/x /srv/my\\040data nfs4 rw 0 0\n/dev/sdb /srv/my\\040data/here xfs rw 0 0\n"


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


def test_what_cannot_be_checked() -> None:
    """A check that fails while nodes are down names the nodes; with all nodes up it names the user's permissions."""
    reason = "Cassandra has too few replicas alive (1 of 2 needed)"
    lost = doctor_rules.judge_unanswered("schema", reason, NODE_DOWN)
    assert (lost.check, lost.state, reason in lost.text) == ("schema", "fail", True)
    assert ("n3" in lost.advice, "may read" in lost.advice) == (True, False)
    assert "may read" in doctor_rules.judge_unanswered("schema", reason, THREE_NODES).advice


PLAIN, WITH_PASSWORD = CassandraOptions(), CassandraOptions(user="u", password="p")


@pytest.mark.parametrize(
    ("finding", "state", "word"),
    [
        (doctor_rules.judge_nodes(THREE_NODES), "ok", ""),
        (doctor_rules.judge_nodes(NODE_DOWN), "warn", "n3"),
        (doctor_rules.judge_versions({"n1": "5.0.6", "n2": "5.0.6"}), "ok", ""),
        (doctor_rules.judge_versions({"n1": "5.0.6", "n2": "4.1.3"}), "warn", ""),
        (doctor_rules.judge_versions({"n1": "4.0.11"}), "warn", ""),
        (doctor_rules.judge_versions({"n1": "5.1.0-SNAPSHOT"}), "ok", ""),
        (doctor_rules.judge_replication({"a": 3}, THREE_NODES)[0], "ok", ""),
        (doctor_rules.judge_replication({"": 3}, THREE_NODES)[0], "ok", ""),
        (doctor_rules.judge_replication({"a": 1}, THREE_NODES)[0], "warn", ""),
        (doctor_rules.judge_replication({"a": 3}, THREE_NODES[:2])[0], "warn", ""),
        (doctor_rules.judge_replication({"a": 3}, THREE_NODES[:1])[0], "fail", ""),
        (doctor_rules.judge_replication({"elsewhere": 3}, THREE_NODES)[0], "fail", ""),
        (doctor_rules.judge_replication({"": 2}, TWO_CENTRES)[0], "warn", ""),
        (doctor_rules.judge_clocks({"n1": 0.01, "n2": -0.02, "n3": 0.0}, 1.0), "ok", ""),
        (doctor_rules.judge_clocks({"n1": 0.35, "n2": 0.35, "n3": 0.35}, 1.0), "warn", ""),
        (doctor_rules.judge_clocks({"n1": -0.51, "n2": -0.51, "n3": -0.51}, 1.0), "fail", ""),
        (doctor_rules.judge_clocks({"n1": 0.0, "n2": 0.0, "n3": 5.0}, 1.0), "warn", ""),
        (doctor_rules.judge_paxos([NODE]), "ok", ""),
        (doctor_rules.judge_paxos([NODE, with_fields(NODE, paxos="v1")]), "warn", ""),
        (doctor_rules.judge_grace({"t": 864_000, "u": 10_800}, 10_800.0), "ok", ""),
        (doctor_rules.judge_grace({"t": 864_000, "u": 0}, 10_800.0), "fail", ": u"),
        (doctor_rules.judge_access(DataCentreTarget(("127.0.0.1", "localhost"), "k"), PLAIN), "ok", ""),
        (doctor_rules.judge_access(FAR, PLAIN), "warn", ""),
        (doctor_rules.judge_access(FAR, replace(WITH_PASSWORD, tls=True)), "ok", ""),
        (judge_free_space(0), "fail", ""),
        (judge_free_space(3 << 20), "warn", ""),
        (judge_free_space(1 << 30), "ok", ""),
        (judge_mount(Path("/home/me"), MOUNTS), "ok", ""),
        (judge_mount(Path("/srv/my data/there"), MOUNTS), "fail", ""),
        (judge_mount(Path("/srv/my data/here/x"), MOUNTS), "ok", ""),
        (doctor_rules.judge_read_repair({"group_sessions": "BLOCKING", "queues": "NONE"}), "ok", ""),
        (doctor_rules.judge_read_repair({"group_sessions": "NONE"}), "fail", "group_sessions (NONE)"),
    ],
)
def test_findings(finding: Finding, state: str, word: str) -> None:
    """Each rule finds what is sound, what is risky and what fails, and names the culprit; no password is shown."""
    assert (finding.state, word in finding.text) == (state, True)
    assert "p" not in finding.text.split()


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
    nodes = [with_fields(NODE, sync=mode) for mode in modes]
    assert make_acknowledgement(nodes).level == level
    findings = doctor_rules.judge_sync(nodes)
    assert findings.state == state
    assert ("10 s" in findings.text, "group" in findings.advice) == (state == "warn", state == "warn")
