"""Decisions about retries and servers, as properties of pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.client import InvalidArgument, RetryPolicy
from queuey.client.http.attempts import ServerChoice
from queuey.client.http.servers import parse_servers

seconds = st.floats(0, 1000)
draws = st.floats(0, 1)


@given(base=seconds, cap=seconds, bound=seconds, attempts=st.integers(1, 10_000), draw=draws, asked=st.none() | seconds)
def test_a_pause_is_never_shorter_than_asked_nor_longer_than_allowed(
    base: float, cap: float, bound: float, attempts: int, draw: float, asked: float | None
) -> None:
    """Whatever the attempt, a pause lies between what the server asked for and both caps together."""
    policy = RetryPolicy(base=base, cap=cap, retry_after_cap=bound)
    pause = policy.pause(attempts, draw, asked)
    least = min(asked or 0.0, bound)
    assert least <= pause <= least + cap
    assert policy.pause(attempts, 0.0, asked) == least
    assert policy.pause(attempts, draw) <= policy.pause(attempts + 1, draw)


@pytest.mark.parametrize("fields", [{"base": -1}, {"deadline": -0.1}, {"cool_down": float("nan")}])
def test_a_senseless_policy_is_refused(fields: dict[str, float]) -> None:
    """Times before now are argument errors."""
    with pytest.raises(InvalidArgument):
        RetryPolicy(**fields)


@given(
    local=st.lists(st.booleans(), min_size=1, max_size=5),
    events=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.floats(0, 20)), max_size=30),
    draw=draws,
)
def test_a_resting_server_is_asked_only_when_all_rest(
    local: list[bool], events: list[tuple[int, bool, float]], draw: float
) -> None:
    """No resting server while another is fresh, a local one before others, else the one that rested longest."""
    now = 0.0
    hosts = [f"127.0.0.{n + 1}" if near else f"far{n}.example" for n, near in enumerate(local)]
    servers = parse_servers([f"http://{host}" for host in hosts], None)
    choice = ServerChoice(servers, cool_down=10, clock=lambda: now, draw=lambda: draw)
    failed: dict[int, float] = {}
    for number, fails, passing in events:
        now += passing
        index = number % len(servers)
        if fails:
            choice.record_failure(servers[index])
            failed[index] = now
        else:
            choice.record_success(servers[index])
            failed.pop(index, None)
        chosen = servers.index(choice.choose())
        fresh = [n for n in range(len(servers)) if n not in failed or now >= failed[n] + 10]
        if not fresh:
            assert failed[chosen] == min(failed.values())
        else:
            assert chosen in ([n for n in fresh if local[n]] or fresh)
            assert servers.index(choice.choose()) == chosen
