"""Judges what :mod:`.doctor` has read from a Cassandra cluster. All functions are pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from queuey.model.messages import Finding
from queuey.settings.users import is_loopback
from queuey.storage.cassandra.admin.node_settings import Node, make_acknowledgement
from queuey.storage.cassandra.cluster import Host
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget, Level
from queuey.storage.cassandra.cluster.timing import StoredTiming
from queuey.storage.cassandra.statements.consistency_levels import Copies, Meeting, auto_level, find_meeting, quorum
from queuey.storage.cassandra.time.clock_check import RED_RATIO, REFUSE_RATIO
from queuey.storage.cassandra.time.timing_in_force import Measured

MIN_TESTED_VERSION = (4, 1)
"""The first version of Cassandra with ``paxos_variant: v2``."""

_MEETS: Mapping[Meeting, str] = {
    "everywhere": "every read meets every acknowledged write",
    "locally": "a read meets every acknowledged write of its own data centre",
    "never": "a read may miss an acknowledged write",
}


def judge_nodes(hosts: Sequence[Host]) -> Finding:
    centres = sorted({host.dc for host in hosts})
    counts = ", ".join(f"{sum(host.dc == name for host in hosts)} in {name}" for name in centres)
    down = sorted(host.address for host in hosts if not host.up)
    if not down:
        return Finding("nodes", "ok", f"all up: {counts}")
    return Finding(
        "nodes", "warn", f"{counts}; down: {', '.join(down)}", "Start them again, or remove them with nodetool."
    )


def judge_unanswered(check: str, reason: str, hosts: Sequence[Host]) -> Finding:
    down = sorted(host.address for host in hosts if not host.up)
    if down:
        text = f"cannot be checked while nodes are down: {reason}"
        return Finding(check, "fail", text, f"Start {', '.join(down)} again, then repeat the check.")
    return Finding(check, "fail", reason, "Check that the nodes are healthy, and what this user may read.")


def judge_versions(versions_by_node: Mapping[str, str]) -> Finding:
    distinct = sorted(set(versions_by_node.values()))
    text = f"Cassandra {' and '.join(distinct)}"
    if len(distinct) > 1:
        return Finding("version", "warn", text, "Finish the upgrade; do not change the schema before.")
    if any(_parse_version(version) < MIN_TESTED_VERSION for version in distinct):
        return Finding("version", "warn", text, "Only 4.1 and later are tested; upgrade.")
    return Finding("version", "ok", text)


def judge_access(target: DataCentreTarget, options: CassandraOptions) -> Finding:
    gaps = []
    if options.user is None:
        gaps.append("without a password")
    if not (options.tls or options.tls_ca or options.tls_cert):
        gaps.append("without encryption")
    if not gaps:
        return Finding("access", "ok", f"by password, encrypted, as user {options.user}")
    text = f"connected {' and '.join(gaps)}"
    if all(is_loopback(host) for host in target.hosts):
        return Finding("access", "ok", f"{text}, on this machine only")
    return Finding(
        "access", "warn", text, "Any program that reaches the port can connect: set cassandra_user and cassandra_tls."
    )


def judge_replication(copies: Copies, hosts: Sequence[Host]) -> list[Finding]:
    """Judges the copies by data centre; the name is empty if the keyspace knows no data centres.

    Fails if a data centre has fewer nodes than a majority of its copies; warns of fewer nodes than copies, of copies
    placed without regard to data centres, and of copies whose majority is all of them.
    """
    shown = ", ".join(f"{count} in {name}" if name else str(count) for name, count in copies.items())
    text = f"copies: {shown}"
    for name, count in copies.items():
        node_count = sum(name in {"", host.dc} for host in hosts)
        if node_count < count:
            state: Literal["warn", "fail"] = "fail" if node_count < quorum(count) else "warn"
            advice = "Add nodes, or keep fewer copies (ALTER KEYSPACE)."
            return [Finding("replication", state, f"{text}, but {node_count} nodes{name and f' in {name}'}", advice)]
    findings = []
    if "" in copies and len({host.dc for host in hosts}) > 1:
        advice = "ALTER KEYSPACE … WITH replication = {'class': 'NetworkTopologyStrategy', …}, then repair."
        findings.append(Finding("replication", "warn", f"{text}, placed without regard to data centres", advice))
    if any(count == 1 for count in copies.values()):
        advice = "In production keep 3 copies: with one, a node that is down stops its queues, a lost disk loses them."
        findings.append(Finding("replication", "warn", text, advice))
    elif any(count - quorum(count) < 1 for count in copies.values()):
        advice = "Keep 3 copies: with 2, a majority is both, so no node may be down."
        findings.append(Finding("replication", "warn", text, advice))
    return findings or [Finding("replication", "ok", text)]


def judge_levels(options: CassandraOptions, copies: Copies) -> list[Finding]:
    return [
        *(_judge_level(name, level, copies) for name, level in options.levels.items()),
        _judge_catalogue(options.catalogue_write, options.catalogue_read, copies),
    ]


def judge_sync(settings: list[Node]) -> Finding:
    meaning = make_acknowledgement(settings)
    if meaning.level == "fsync":
        return Finding("acknowledged", "ok", meaning.text)
    advice = "Set commitlog_sync: group (or batch) in every node's cassandra.yaml if a power cut must lose nothing."
    return Finding("acknowledged", "warn", meaning.text, advice)


def judge_clocks(ahead: Mapping[str, float], difference: float) -> Finding:
    """Fails if this machine is more than ``REFUSE_RATIO`` of S off the median.

    Warns from ``RED_RATIO`` on, also of nodes.

    ``ahead``: seconds by node that this machine is ahead, ``difference``: S in seconds.
    """
    median = statistics.median(ahead.values())
    widest = max(abs(value) for value in ahead.values())
    text = f"this machine is {median:+.3f} s off the nodes' median; the limit is {REFUSE_RATIO * difference:g} s"
    if abs(median) > REFUSE_RATIO * difference:
        return Finding(
            "clocks", "fail", text, "Set this machine's clock (NTP); until then the service refuses requests."
        )
    if abs(median) > RED_RATIO * difference:
        return Finding("clocks", "warn", text, "Set this machine's clock (NTP): it is close to the limit.")
    off = sorted(name for name, value in ahead.items() if abs(value - median) > RED_RATIO * difference)
    if off:
        return Finding("clocks", "warn", f"off the others: {', '.join(off)}", "Set the clocks of these nodes (NTP).")
    return Finding("clocks", "ok", f"within {widest:.3f} s of every node; the limit is {REFUSE_RATIO * difference:g} s")


MIN_LIMIT_RATIO = 1.25
"""Min ratio of a time limit to the measured time."""


def judge_timing(stored: StoredTiming, measured: Mapping[str, Measured]) -> Finding:
    """Warns of an unfinished change and of measurements above the limits; states the shortest D that they allow."""
    level = stored.kept.levels["strong"]
    if not stored.settled:
        advice = "Repeat the command that was stopped, or name all values: see queuey timing --help."
        return Finding("timing", "warn", "a change of the timing is under way, or was stopped", advice)
    processes = [process for process in measured.values() if process.write.count]
    if not processes:
        text = f"messages are read {level.delay:g} s after they were stored; there are no recent measurements"
        return Finding("timing", "ok", text)
    write = max(process.write.p999 for process in processes)
    undo = max(process.undo.p999 for process in processes)
    error = max(process.clock_error for process in processes)
    # Undo writes are rare. Without a measurement, one is assumed to take as long as a write.
    min_delay = MIN_LIMIT_RATIO * (write + (undo or write) + 2 * error)
    text = (
        f"messages are read {level.delay:g} s after they were stored; measured by {len(processes)} processes: writes "
        f"p99.9 {write:.3f} s (W {level.deadline:g}), undo writes p99.9 {undo:.3f} s (U {level.undo:g}), clocks within "
        f"{error:.3f} s (S/2 {stored.kept.clock_difference / 2:g}): D could be {min_delay:.2f} s"
    )
    if write > level.deadline or undo > level.undo > 0 or 2 * error > stored.kept.clock_difference:
        return Finding("timing", "warn", text, "Raise the limits with queuey timing, or find out why it is slow.")
    return Finding("timing", "ok", text)


def judge_paxos(settings: Iterable[Node]) -> Finding:
    """Warns unless all nodes have ``paxos_variant: v2``. A node without the setting counts as v1."""
    variants = sorted({node.paxos or "v1" for node in settings})
    text = f"paxos_variant: {' and '.join(variants)}"
    if variants == ["v2"]:
        return Finding("paxos", "ok", text)
    advice = "Set paxos_variant: v2 on every node: claims and changes of queues then take half the round trips."
    return Finding("paxos", "warn", text, advice)


def judge_grace(grace_seconds: Mapping[str, int], hint_seconds: float) -> Finding:
    short = sorted(name for name, value in grace_seconds.items() if value < hint_seconds)
    if short:
        return Finding(
            "gc_grace",
            "fail",
            f"below the nodes' max_hint_window ({hint_seconds / 3600:g} h): {', '.join(short)}",
            "Raise gc_grace_seconds of these tables: a late write could bring back deleted rows.",
        )
    max_grace = max(grace_seconds.values(), default=0)
    return Finding("gc_grace", "ok", f"up to {max_grace / 86400:g} d: repair the keyspace more often than that")


REPAIRED = ("group_sessions",)
"""Tables that need monotonic reads: once a read has returned a value, later reads must return it as well."""


def judge_read_repair(read_repair_by_table: Mapping[str, str]) -> Finding:
    wrong = [
        f"{name} ({read_repair_by_table[name]})"
        for name in REPAIRED
        if read_repair_by_table.get(name, "BLOCKING") != "BLOCKING"
    ]
    if wrong:
        text = f"read_repair is not BLOCKING: {', '.join(wrong)}"
        advice = "ALTER TABLE … WITH read_repair = 'BLOCKING': otherwise a partition could briefly have two owners."
        return Finding("read_repair", "fail", text, advice)
    return Finding("read_repair", "ok", f"BLOCKING for {', '.join(REPAIRED)}")


def _judge_level(name: str, level: Level, copies: Copies) -> Finding:
    """Fails if reads may miss acknowledged writes. Levels without guarantees are ok.

    Warns if EACH_QUORUM is written in vain, because reads meet only writes of their data centre.
    """
    auto = auto_level(copies)
    write, read = level.write or auto, level.read or auto
    text = f"{name}: written at {write}, read at {read}"
    if not level.safe:
        return Finding("levels", "ok", f"{text}: no guarantees")
    meets = find_meeting(write, read, copies)
    text = f"{text}: {_MEETS[meets]}"
    if meets == "never":
        advice = f"Choose other levels for write and read of consistency.{name}, such as QUORUM for both."
        return Finding("levels", "fail", text, advice)
    if meets == "locally" and write == "EACH_QUORUM":
        return Finding("levels", "warn", text, f"Set read of consistency.{name} to LOCAL_QUORUM or QUORUM.")
    return Finding("levels", "ok", text)


def _judge_catalogue(write: str, read: str, copies: Copies) -> Finding:
    meets = find_meeting(write, read, copies)
    text = f"catalogue: written at {write}, read at {read}: {_MEETS[meets]}"
    if meets == "everywhere":
        return Finding("levels", "ok", text)
    advice = "Set write and read of consistency.catalogue to QUORUM."
    return Finding("levels", "fail" if meets == "never" else "warn", text, advice)


def _parse_version(version: str) -> tuple[int, ...]:
    parts = version.split("-", 1)[0].split(".")
    return tuple(int(part) for part in parts[:2] if part.isdecimal())
