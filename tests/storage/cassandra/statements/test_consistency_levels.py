"""Tests of the meaning of consistency levels on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import StoreUnavailable
from queuey.model.ids import LOW_MIN, TICKS_PER_SECOND
from queuey.model.messages import Queue
from queuey.storage.cassandra.cluster.options import READ_LEVELS, WRITE_LEVELS, CassandraOptions, Level
from queuey.storage.cassandra.statements.consistency_levels import ConsistencyLevels, find_meeting, is_empty_read_proof
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.time.timing_in_force import TimingInForce

ONE_CENTRE = {"a": 3}
TWO_CENTRES = {"a": 3, "b": 3}


def levels_on(copies: Mapping[str, int], **options: object) -> ConsistencyLevels:
    return levels_by(lambda: copies, CassandraOptions(**options))  # type: ignore[arg-type]


def levels_by(
    replication: Callable[[], Mapping[str, int]], options: CassandraOptions | None = None
) -> ConsistencyLevels:
    chosen = options or CassandraOptions()
    return ConsistencyLevels(chosen, replication, TimingInForce(chosen, SteadyClock()))


def queue_with(consistency: str, read_delay: float | None = None) -> Queue:
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
    """With several data centres a quorum is local, except for writes that are to reach each centre."""
    level = levels_on(copies).resolve(queue_with(consistency))
    assert (level.writes, level.reads) == (writes, reads)


def test_a_deployment_decides_what_a_level_means() -> None:
    """Levels that a deployment sets are used as they are."""
    own = Level("ALL", "ONE", delay=7.0, deadline=2.0)
    levels = levels_on(TWO_CENTRES, levels=MappingProxyType({"strong": own}))
    level = levels.resolve(queue_with("strong"))
    assert level == ("ALL", "ONE", 7.0, 2.0, 6.75, True)


def test_what_is_not_known_yet_is_asked_again() -> None:
    """While the cluster is not reachable nothing is decided for good."""
    replications: list[Mapping[str, int]] = []

    def replication() -> Mapping[str, int]:
        if not replications:
            raise StoreUnavailable("not reached yet")
        return replications[0]

    levels = levels_by(replication)
    assert levels.resolve(queue_with("strong")).writes == "QUORUM"
    assert not levels.is_empty_read_proof(levels.resolve(queue_with("strong")))
    with pytest.raises(StoreUnavailable):
        levels.claims_refusal(queue_with("strong"))
    replications.append(TWO_CENTRES)
    assert levels.resolve(queue_with("strong")).writes == "LOCAL_QUORUM"


@pytest.mark.parametrize(
    ("consistency", "read_delay", "copies", "safe", "says"),
    [
        ("strong", None, ONE_CENTRE, True, "written at QUORUM"),
        ("strong", 1.0, ONE_CENTRE, True, "1 s behind"),
        ("strong", 60.0, ONE_CENTRE, True, "60 s behind"),
        ("strong", 0.9, ONE_CENTRE, False, "0.9 s is shorter"),
        ("strong", None, TWO_CENTRES, True, "within its data centre"),
        ("very_strong", None, TWO_CENTRES, True, "written at EACH_QUORUM, read at LOCAL_QUORUM"),
        ("weak", None, ONE_CENTRE, False, "one node can lose"),
        ("weak", 60.0, ONE_CENTRE, False, "may miss"),
    ],
)
def test_the_guarantee_is_said_as_it_is(
    consistency: str, read_delay: float | None, copies: Mapping[str, int], says: str, *, safe: bool
) -> None:
    """The guarantee promises only what level, delay and data centres give."""
    guarantee = levels_on(copies).guarantee(queue_with(consistency, read_delay))
    assert ("misses no acknowledged message" in guarantee) == safe
    assert says in guarantee
    assert ("within its data centre" in guarantee) == (consistency == "strong" and copies is TWO_CENTRES)


# What an empty read proves


@pytest.mark.parametrize(
    ("consistency", "copies", "may"),
    [
        ("strong", ONE_CENTRE, True),
        ("very_strong", ONE_CENTRE, True),
        ("weak", ONE_CENTRE, False),
        ("strong", {"": 3}, True),
        ("strong", TWO_CENTRES, False),
        ("weak", TWO_CENTRES, False),
        # Its own writes are met everywhere, but the queue may have been ``strong`` before.
        ("very_strong", TWO_CENTRES, False),
    ],
)
def test_nothing_is_concluded_where_another_centre_may_have_more(
    consistency: str, copies: Mapping[str, int], *, may: bool
) -> None:
    """With LOCAL_QUORUM an empty read proves nothing in several data centres; in one it does, below the horizon."""
    levels, now = levels_on(copies), 10**17
    for queue in (queue_with(consistency), queue_with(consistency, 0.0)):  # Writes take as long for one without delay.
        assert levels.is_empty_read_proof(levels.resolve(queue)) == may
        assert levels.empty_below(levels.resolve(queue), now) == ((now - TICKS_PER_SECOND, LOW_MIN) if may else None)


@given(
    reads=st.sampled_from(READ_LEVELS),
    writes=st.lists(st.sampled_from([None, *WRITE_LEVELS]), min_size=1, max_size=3),
    copies=st.dictionaries(st.sampled_from("ab"), st.integers(1, 3), min_size=1),
)
def test_whoever_concludes_has_met_every_write(reads: str, writes: list[str | None], copies: dict[str, int]) -> None:
    """An empty read proves something only if it meets the writes of every level that promises anything."""
    given_levels = {str(number): Level(write, reads, delay=5.0) for number, write in enumerate(writes)}
    unsafe = {"weak": Level("ONE", "ONE", delay=1.0, safe=False)}
    options = CassandraOptions(levels=MappingProxyType(given_levels | unsafe))
    auto = "QUORUM" if len(copies) == 1 else "LOCAL_QUORUM"
    met = [find_meeting(write or auto, reads, copies) == "everywhere" for write in writes]
    assert is_empty_read_proof(reads, options, copies) == all(met)


def test_a_data_centre_that_is_added_ends_all_conclusions() -> None:
    """The present copies count: adding a data centre ends all conclusions, removing it allows them again."""
    copies = [ONE_CENTRE]
    levels, queue = levels_by(lambda: copies[-1]), queue_with("strong")
    assert levels.empty_below(levels.resolve(queue), 10**17) is not None
    copies.append(TWO_CENTRES)
    assert levels.resolve(queue).reads == "QUORUM"
    assert levels.empty_below(levels.resolve(queue), 10**17) is None
    copies.append(ONE_CENTRE)
    assert levels.empty_below(levels.resolve(queue), 10**17) is not None


@pytest.mark.parametrize(
    ("copies", "consistency", "chosen"),
    [
        (ONE_CENTRE, "weak", "strong"),
        (ONE_CENTRE, "strong", None),
        (ONE_CENTRE, "very_strong", None),
        ({"": 3}, "strong", None),
        (TWO_CENTRES, "weak", "very_strong"),
        (TWO_CENTRES, "strong", "very_strong"),
        (TWO_CENTRES, "very_strong", None),
    ],
)
def test_claims_are_refused_by_name(copies: Mapping[str, int], consistency: str, chosen: str | None) -> None:
    """A queue can be claimed from if its reads meet all acknowledged writes; the error names a level that can be."""
    refusal = levels_on(copies).claims_refusal(queue_with(consistency))
    if chosen is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.endswith(f"Choose consistency {chosen!r}: queuey queue update q --consistency {chosen}")


def test_claims_where_no_level_can_be_claimed() -> None:
    """If no level meets all data centres the error says which settings to change."""
    local = Level("LOCAL_QUORUM", "LOCAL_QUORUM", delay=5.0)
    levels = levels_on(TWO_CENTRES, levels=MappingProxyType({"weak": local, "strong": local, "very_strong": local}))
    refusal = levels.claims_refusal(queue_with("very_strong"))
    assert refusal is not None
    assert refusal.endswith("set one to read and write at QUORUM.")


def test_claims_are_compared_by_all_data_centres() -> None:
    """Claims are compared over all data centres; otherwise two centres could claim the same message."""
    refusal = levels_on(TWO_CENTRES, catalogue_serial="LOCAL_SERIAL").claims_refusal(queue_with("very_strong"))
    assert refusal is not None
    assert "LOCAL_SERIAL" in refusal
    assert levels_on(ONE_CENTRE, catalogue_serial="LOCAL_SERIAL").claims_refusal(queue_with("strong")) is None


@pytest.mark.parametrize(
    ("copies", "options", "says"),
    [
        (ONE_CENTRE, {}, None),
        (TWO_CENTRES, {}, None),
        (ONE_CENTRE, {"catalogue_serial": "LOCAL_SERIAL"}, None),
        (TWO_CENTRES, {"catalogue_serial": "LOCAL_SERIAL"}, "Set its serial level to SERIAL"),
        (TWO_CENTRES, {"catalogue_write": "EACH_QUORUM", "catalogue_read": "LOCAL_QUORUM"}, None),
        (TWO_CENTRES, {"catalogue_write": "LOCAL_QUORUM", "catalogue_read": "LOCAL_QUORUM"}, "Set both to QUORUM"),
        (ONE_CENTRE, {"catalogue_read": "ONE"}, "Set both to QUORUM"),
    ],
)
def test_groups_need_the_whole_catalogue(copies: Mapping[str, int], options: dict[str, str], says: str | None) -> None:
    """Groups need reads that meet every session, and comparisons over all data centres."""
    refusal = levels_on(copies, **options).groups_refusal()
    assert refusal is None if says is None else refusal is not None and says in refusal


def test_keys_are_compared_everywhere() -> None:
    """Idempotency keys are compared over all data centres, even if changes of the catalogue are compared in one."""
    assert levels_on(TWO_CENTRES, catalogue_serial="LOCAL_SERIAL").row_serial_level() == "SERIAL"
    assert levels_on(TWO_CENTRES).row_serial_level() == "SERIAL"
    assert levels_on(ONE_CENTRE, catalogue_serial="LOCAL_SERIAL").row_serial_level() == "LOCAL_SERIAL"


@pytest.mark.parametrize(
    ("copies", "catalogue_read", "reads"),
    [
        (ONE_CENTRE, "QUORUM", "QUORUM"),
        ({"": 1}, "QUORUM", "QUORUM"),
        (TWO_CENTRES, "QUORUM", "QUORUM"),
        (TWO_CENTRES, "LOCAL_QUORUM", "SERIAL"),
    ],
)
def test_reads_of_claim_logs(copies: Mapping[str, int], catalogue_read: str, reads: str) -> None:
    """A claim log is read serially if a read in one data centre could miss an entry."""
    assert levels_on(copies, catalogue_read=catalogue_read).log_read_level() == reads
