"""What consistency levels mean on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from queuey.errors import StoreUnavailable
from queuey.messages import Queue
from queuey.storage.cassandra.levels import Levels
from queuey.storage.cassandra.options import CassandraOptions, Level

ONE_CENTRE = {"a": 3}
TWO_CENTRES = {"a": 3, "b": 3}


def levels_on(copies: Mapping[str, int], **options: object) -> Levels:
    """The levels in force where a keyspace has these copies."""
    return Levels(CassandraOptions(**options), lambda: copies)  # type: ignore[arg-type]


def queue_with(consistency: str, read_delay: float | None = None) -> Queue:
    """A queue of a level."""
    return Queue(application="acme", name="q", uid=1, qid=2, consistency=consistency, read_delay=read_delay)


@pytest.mark.parametrize(
    ("consistency", "copies", "writes", "reads"),
    [
        ("weak", ONE_CENTRE, "ONE", "ONE"),
        ("weak", TWO_CENTRES, "ONE", "ONE"),
        ("strong", ONE_CENTRE, "QUORUM", "QUORUM"),
        ("strong", TWO_CENTRES, "LOCAL_QUORUM", "LOCAL_QUORUM"),
        ("very_strong", ONE_CENTRE, "EACH_QUORUM", "QUORUM"),
        ("very_strong", TWO_CENTRES, "EACH_QUORUM", "LOCAL_QUORUM"),
    ],
)
def test_levels_follow_the_data_centres(consistency: str, copies: Mapping[str, int], writes: str, reads: str) -> None:
    """With several data centres a quorum is one of the local centre, but for writes that are to reach each."""
    found = levels_on(copies).of(queue_with(consistency))
    assert (found.writes, found.reads) == (writes, reads)


def test_a_deployment_decides_what_a_level_means() -> None:
    """Levels that are given are taken as they are."""
    own = Level("ALL", "ONE", delay=7.0, deadline=2.0)
    levels = levels_on(TWO_CENTRES, levels=MappingProxyType({"strong": own}))
    found = levels.of(queue_with("strong"))
    assert found == ("ALL", "ONE", 7.0, 2.0, True)


def test_what_is_not_known_yet_is_asked_again() -> None:
    """While the cluster is not reachable nothing is decided for good."""
    known: list[Mapping[str, int]] = []

    def replication() -> Mapping[str, int]:
        if not known:
            raise StoreUnavailable("not reached yet")
        return known[0]

    levels = Levels(CassandraOptions(), replication)
    assert levels.of(queue_with("strong")).writes == "QUORUM"
    known.append(TWO_CENTRES)
    assert levels.of(queue_with("strong")).writes == "LOCAL_QUORUM"


def test_a_queue_may_have_a_delay_of_its_own() -> None:
    """The queue's read delay counts, also if it is 0; without one the level's does."""
    levels = levels_on(ONE_CENTRE)
    assert levels.delay(queue_with("strong")) == 5.0
    assert levels.delay(queue_with("weak")) == 1.0
    assert levels.delay(queue_with("strong", 0.0)) == 0.0
    assert levels.delay(queue_with("strong", 60.0)) == 60.0


@pytest.mark.parametrize(
    ("consistency", "read_delay", "copies", "safe", "says"),
    [
        ("strong", None, ONE_CENTRE, True, "written at QUORUM"),
        ("strong", 5.0, ONE_CENTRE, True, "5 s behind"),
        ("strong", 60.0, ONE_CENTRE, True, "60 s behind"),
        ("strong", 4.9, ONE_CENTRE, False, "4.9 s is shorter"),
        ("strong", None, TWO_CENTRES, True, "within its data centre"),
        ("very_strong", None, TWO_CENTRES, True, "written at EACH_QUORUM, read at LOCAL_QUORUM"),
        ("weak", None, ONE_CENTRE, False, "one node can lose"),
        ("weak", 60.0, ONE_CENTRE, False, "may miss"),
    ],
)
def test_the_guarantee_is_said_as_it_is(
    consistency: str,
    read_delay: float | None,
    copies: Mapping[str, int],
    says: str,
    *,
    safe: bool,
) -> None:
    """No more is promised than what level, delay and data centres give."""
    found = levels_on(copies).guarantee(queue_with(consistency, read_delay))
    assert ("misses no acknowledged message" in found) == safe
    assert says in found
    assert ("within its data centre" in found) == (consistency == "strong" and copies is TWO_CENTRES)
