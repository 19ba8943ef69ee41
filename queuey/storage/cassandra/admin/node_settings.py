"""Settings, version and clock of each Cassandra node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from queuey.model.errors import StoreUnavailable
from queuey.model.messages import Acknowledgement
from queuey.storage.cassandra.cluster import Driver, Rows, Statement, StatementRequest

ASK_TIMEOUT = 3.0

_NAMES = (
    "commitlog_sync",
    "commitlog_sync_period_in_ms",
    "commitlog_sync_group_window_in_ms",
    "max_hint_window_in_ms",
    "paxos_variant",
)
_SELECT_SETTINGS = Statement(f"SELECT name, value FROM system_views.settings WHERE name IN {_NAMES}")


class Node(NamedTuple):
    """Settings of one node.

    A setting that the node does not report has Cassandra's default: periodic syncs every 10 s, hints for 3 h.

    Attributes:
        sync: ``commitlog_sync``: ``periodic``, ``batch`` or ``group``.
        period: Seconds between two syncs if they are periodic.
        hints: Seconds for which other nodes keep hints for it.
        paxos: ``paxos_variant``, None before Cassandra 4.1.
    """

    address: str
    sync: str
    period: float
    hints: float
    paxos: str | None


def ask_each(driver: Driver, statement: Statement, done: Callable[[str, Rows], None]) -> dict[str, str]:
    """Asks every node that is up, all at once; ``done`` gets address and rows in the loop's thread.

    Returns:
        By address, why a node did not answer.

    Raises:
        StoreUnavailable: A node sent no reply, not even an error.
    """
    failed: dict[str, str] = {}
    answered = threading.Semaphore(0)
    nodes = [host.address for host in driver.hosts() if host.up]

    def receive(address: str, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if error is None:
            done(address, rows or [])
        else:
            failed[address] = str(error)
        answered.release()

    for address in nodes:
        driver.send(
            StatementRequest(statement, consistency="ONE", timeout=ASK_TIMEOUT, host=address), partial(receive, address)
        )
    for _ in nodes:
        if not answered.acquire(timeout=2 * ASK_TIMEOUT):
            raise StoreUnavailable("a Cassandra node did not answer in time")
    return failed


def read_nodes(driver: Driver) -> list[Node]:
    by_address: dict[str, Node] = {}
    failed = ask_each(
        driver, _SELECT_SETTINGS, lambda address, rows: by_address.update({address: _make_node(address, rows)})
    )
    if not by_address:
        reasons = "; ".join(sorted(set(failed.values()))) or "no node is up"
        raise StoreUnavailable(f"no Cassandra node answered about its settings: {reasons}")
    return [by_address[address] for address in sorted(by_address)]


def acknowledgement_of(driver: Driver) -> Acknowledgement:
    return make_acknowledgement(read_nodes(driver))


def make_acknowledgement(nodes: list[Node]) -> Acknowledgement:
    """Returns what an answer to a write promises, by the weakest of at least one node."""
    replicas = "as many replicas as the queue's consistency level requires"
    modes = sorted({node.sync for node in nodes})
    if "periodic" in modes:
        max_period = max(node.period for node in nodes if node.sync == "periodic")
        return Acknowledgement(
            "replicated",
            f"in the memory of {replicas} before the answer, and on the disk of each within {max_period:g} s "
            "(commitlog_sync: periodic): it may be lost if one of them loses power before that",
        )
    return Acknowledgement(
        "fsync", f"on the disks of {replicas} (fsync, commitlog_sync: {' and '.join(modes)}), before the answer"
    )


def _make_node(address: str, rows: Rows) -> Node:
    values: dict[str, str | None] = dict(rows)
    return Node(
        address,
        sync=values.get("commitlog_sync") or "periodic",
        period=float(values.get("commitlog_sync_period_in_ms") or 10_000) / 1000,
        hints=float(values.get("max_hint_window_in_ms") or 10_800_000) / 1000,
        paxos=values.get("paxos_variant"),
    )
