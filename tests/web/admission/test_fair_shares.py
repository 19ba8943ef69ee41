"""Fair shares: a single tenant gets nearly all, some is always left for another, and none starves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import StoreUnavailable, TooManyRequests
from queuey.web.admission.scheduling import FairQueue, SharedQuota

HOLDERS = st.sampled_from("abcdef")
STEPS = st.lists(st.tuples(HOLDERS, st.integers(-1, 40)), max_size=200)


@given(st.integers(1, 200), st.integers(1, 16), STEPS)
def test_a_room_never_gives_more_than_it_has(total: int, alpha: int, steps: list[tuple[str, int]]) -> None:
    """Held and free add up to the total, and every holder stays within its share."""
    room = SharedQuota(total, alpha)
    held: Counter[str] = Counter()
    for tenant, weight in steps:
        if weight < 0:
            room.change(tenant, -held.pop(tenant, 0))
            continue
        had = held[tenant]
        if room.take(tenant, weight):
            held[tenant] += weight
            assert not had or held[tenant] <= alpha * room.free
        assert room.held(tenant) == held[tenant]
        assert room.free == total - held.total() >= 0


@given(st.integers(1, 10_000), st.integers(1, 16), st.integers(1, 50))
def test_one_alone_gets_nearly_all(total: int, alpha: int, weight: int) -> None:
    """A tenant alone gets ``alpha`` parts of ``alpha + 1``, up to one weight, and always something."""
    room = SharedQuota(total, alpha)
    while room.take("a", weight):
        pass
    assert room.held("a") > total * alpha / (alpha + 1) - weight
    assert weight > total or room.held("a")


@given(st.integers(100, 10_000), st.integers(1, 16), st.integers(1, 5))
def test_something_is_left_for_another(total: int, alpha: int, greedy: int) -> None:
    """However much some tenants take, piece by piece, another one gets its part of the rest."""
    room = SharedQuota(total, alpha)
    for _ in range(2):
        for number in range(greedy):
            while room.take(f"greedy {number}", 1):
                pass
    free = room.free
    assert free >= total // (1 + alpha) ** greedy
    assert not free or room.take("another", free)


def test_why_it_did_not_fit() -> None:
    """A refusal is the tenant's fault beyond its own share, and no tenant's fault when everything is taken."""
    room = SharedQuota(90, 8)
    assert room.take("a", 80)
    assert not room.take("a", 5)
    assert isinstance(room.make_refusal("a", 5), TooManyRequests)
    assert room.take("b", 10)
    assert not room.take("c", 5)
    assert isinstance(room.make_refusal("c", 5), StoreUnavailable)
    assert isinstance(room.make_refusal("a", 50), TooManyRequests)


@given(st.integers(1, 500), st.integers(1, 5), st.floats(0.001, 10.0))
def test_who_has_used_least_is_next(backlog: int, others: int, cost: float) -> None:
    """Behind any backlog of one tenant, each other one is served within one round, whatever the jobs cost."""
    turns: FairQueue[str] = FairQueue()
    for _ in range(backlog):
        turns.put("greedy", "greedy")
    for _ in range(min(backlog, 7)):
        assert turns.take(lambda _: True) == "greedy"
        turns.charge("greedy", cost)
    for number in range(others):
        turns.put(str(number), str(number))
    first = [turns.take(lambda _: True) for _ in range(others + 1)]
    assert set(map(str, range(others))) - set(first) == set()


@pytest.mark.parametrize("costs", [(1.0, 1.0), (5.0, 1.0), (0.5, 8.0)])
def test_time_is_shared_not_requests(costs: tuple[float, float]) -> None:
    """Two tenants that never run dry get the same seconds, though the jobs of one take longer."""
    turns: FairQueue[int] = FairQueue()
    spent = [0.0, 0.0]
    for who in (0, 1):
        turns.put(str(who), who)
    for _ in range(2000):
        chosen = turns.take(lambda _: True)
        assert chosen is not None
        turns.charge(str(chosen), costs[chosen])
        spent[chosen] += costs[chosen]
        turns.put(str(chosen), chosen)
    assert abs(spent[0] - spent[1]) <= 2 * max(costs)


def test_jobs_that_do_not_fit_hold_up_nobody_else() -> None:
    """A tenant whose next job does not fit waits; the others go on. Abandoned jobs are removed."""
    turns: FairQueue[str] = FairQueue()
    turns.put("a", "large")
    turns.put("b", "small")
    assert turns.take(lambda job: job == "small") == "small"
    assert turns.take(lambda job: job == "small") is None
    assert turns.drop(lambda job: job == "large") == ["large"]
    assert not turns
    turns.put("a", "again")
    assert turns.take(lambda _: True) == "again"
    assert turns.take(lambda _: True) is None
