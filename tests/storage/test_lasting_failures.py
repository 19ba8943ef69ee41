"""A trouble is logged once, and once more when it is over."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.cluster.topology import HostLogger
from queuey.storage.lasting_failures import QUIET_SECONDS, Trouble

STEPS = st.lists(st.tuples(st.sampled_from(["full", "busy", ""]), st.floats(0, 2 * QUIET_SECONDS)))


class Kept(logging.Handler):
    """Keeps log records."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname} {record.getMessage()}")


@given(STEPS)
def test_told_once_and_once_more(steps: list[tuple[str, float]]) -> None:
    """Each reason is logged when it begins; the end is logged after a success without failures for a while before."""
    log, kept, now = logging.getLogger("test of troubles"), Kept(), [0.0]
    log.handlers = [kept]
    trouble = Trouble(log, "It", clock=lambda: now[0])
    present, last = "", 0.0
    for reason, seconds in steps:
        now[0] += seconds
        before = len(kept.texts)
        if reason:
            trouble.record_failure(reason, reason)
            expected = [f"ERROR It: {reason}"] if reason != present else []
            present, last = reason, now[0]
        else:
            trouble.record_success()
            over = bool(present) and now[0] - last >= QUIET_SECONDS
            expected = ["WARNING It: works again"] if over else []
            present = "" if over else present
        assert [text.partition(" after")[0] for text in kept.texts[before:]] == expected
        assert trouble.reason == (present or None)


def test_nodes(caplog: pytest.LogCaptureFixture) -> None:
    """A lost node is logged once, and once when it is back; one that left the cluster is forgotten."""
    watchman = HostLogger()
    here, there = (SimpleNamespace(address=address, datacenter="dc1") for address in ("10.0.0.1", "10.0.0.2"))
    watchman.on_add(here)
    watchman.on_up(here)
    for host in (here, here, there):
        watchman.on_down(host)
    watchman.on_remove(there)
    for host in (here, here, there):
        watchman.on_up(host)
    assert [record.getMessage().partition(" after")[0] for record in caplog.records] == [
        "Cassandra node 10.0.0.1: lost (data centre dc1); retrying until it answers",
        "Cassandra node 10.0.0.2: lost (data centre dc1); retrying until it answers",
        "Cassandra node 10.0.0.1: works again",
    ]
