"""Limits of requests: the buckets, their callers, and the setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import settings
from queuey.model.errors import SettingsError
from queuey.model.rights import USERS_TENANT_PREFIX, Caller, name_within
from queuey.settings import OwnRates, Rates
from queuey.web.admission.rates import Buckets, Rate, RateLimits
from tests.waiting import MovedClock

SHOP = Caller(names=frozenset({"app:shop"}), tenant="app:shop")
NEWS = Caller(names=frozenset({"app:news"}), tenant="app:news")
ANN = Caller(names=frozenset({name_within("shop", "user:x.ann")}), tenant=f"{USERS_TENANT_PREFIX}shop")
BOB = Caller(names=frozenset({name_within("shop", "user:x.bob")}), tenant=f"{USERS_TENANT_PREFIX}shop")


def count_passed(limits: RateLimits, caller: Caller, count: int) -> int:
    return sum(limits.count(caller, "shop")[1] is None for _ in range(count))


@given(
    st.sampled_from([0.001, 0.3, 1.0, 3.0, 7.7, 1000.0]),
    st.integers(1, 20),
    st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_a_bucket_lets_through_what_was_promised_and_no_more(rate: float, burst: int, pauses: list[float]) -> None:
    """In any interval at most burst + rate * seconds requests pass; one is refused only if no token is left."""
    buckets, now, tokens = Buckets(), 0.0, float(burst)
    times: list[float] = []
    for pause in pauses:
        now += pause
        tokens = min(burst, tokens + pause * rate)
        verdict = buckets.peek("a", Rate(rate, burst), now)
        if verdict.seconds_to_token:
            assert tokens < 1 + 1e-6
            assert verdict.seconds_to_token == pytest.approx((1 - tokens) / rate, rel=1e-3, abs=1e-6)
            assert verdict.tokens_left == 0
            continue
        buckets.take("a", verdict, now)
        tokens -= 1
        assert tokens > -1e-6
        assert verdict.tokens_left == pytest.approx(tokens, abs=1 + 1e-6)
        assert verdict.seconds_to_full == pytest.approx((burst - tokens) / rate, rel=1e-3, abs=1e-6)
        times.append(now)
    for begin in range(len(times)):
        for end in range(begin, len(times)):
            assert end - begin + 1 <= burst + rate * (times[end] - times[begin]) + 1e-6


def test_each_application_and_each_user_has_a_bucket() -> None:
    """Requests of one caller do not count for others; those of users count for their application as well."""
    limits = RateLimits(Rates(application=5, user=2), clock=MovedClock())
    assert count_passed(limits, ANN, 9) == 2
    assert count_passed(limits, BOB, 9) == 2
    assert count_passed(limits, SHOP, 9) == 1
    assert count_passed(limits, NEWS, 9) == 5
    assert count_passed(limits, BOB, 9) == 0


def test_who_is_over_the_own_limit_takes_nothing_from_the_application() -> None:
    """A user's refused requests do not use up tokens of the application."""
    limits = RateLimits(Rates(application=10, user=2), clock=MovedClock())
    assert count_passed(limits, ANN, 1000) == 2
    assert count_passed(limits, SHOP, 99) == 8


def test_headers_say_what_is_left_and_a_refusal_when_to_come_again() -> None:
    """Headers have the form of structured fields, with a member for each limit of the caller."""
    clock = MovedClock()
    limits = RateLimits(Rates(application=500, user=5, user_burst=20), clock=clock)
    headers, refusal = limits.count(ANN, "shop")
    assert refusal is None
    assert headers == (
        ("RateLimit-Policy", '"user";q=20;w=4, "application";q=500;w=1'),
        ("RateLimit", '"user";r=19;t=1, "application";r=499;t=1'),
    )
    assert limits.count(SHOP, "shop")[0][1] == ("RateLimit", '"application";r=498;t=1')
    slow = RateLimits(Rates(user=0.1), clock=clock)
    slow.count(ANN, "shop")
    clock.now += 1
    headers, refusal = slow.count(ANN, "shop")
    assert dict(headers)["RateLimit"] == '"user";r=0;t=9'
    assert refusal is not None
    assert refusal.retry_after == 9
    assert str(refusal) == "Too many requests of this user: it may make 0.1 a second, 1 at once. Try again after 9 s."
    assert slow.count(SHOP, "shop") == ((), None)


def test_buckets_are_bounded_and_the_fullest_go_first() -> None:
    """With a flood of users, those near an empty bucket are kept, and memory is bounded."""
    clock = MovedClock()
    buckets, rate = Buckets(max_buckets=100), Rate(1, 10)
    for _ in range(10):
        buckets.take("greedy", buckets.peek("greedy", rate, clock.now), clock.now)
    for number in range(1000):
        buckets.take(f"user {number}", buckets.peek(f"user {number}", rate, clock.now), clock.now)
        assert len(buckets) <= 100
    assert buckets.peek("greedy", rate, clock.now).seconds_to_token > 0


def test_the_setting_is_a_table_with_tables_for_applications(tmp_path: Path) -> None:
    """A field missing for an application is the common one; on a command line it is written like other tables."""
    path = tmp_path / "q.toml"
    path.write_text("[rates]\napplication = 500\nuser = 5\n[rates.applications.shop]\nuser = 50\nuser_burst = 70\n")
    rates = settings.load({}, {}, config=path).settings.rates
    assert rates == Rates(application=500, user=5, applications={"shop": OwnRates(user=50, user_burst=70)})
    assert (
        rates.for_application("shop").rate_and_burst("application"),
        rates.for_application("shop").rate_and_burst("user"),
    ) == ((500, 500), (50, 70))
    assert rates.for_application("news").rate_and_burst("user") == (5, 5)
    assert settings.as_text(rates) == (
        "application=500,application_burst=0,user=5,user_burst=0,applications=[shop=[user=50,user_burst=70]]"
    )
    assert settings.load({"rates": "user=0.5"}, {"QUEUEY_RATES": "user=9,application=3"}).settings.rates == Rates(
        application=3, user=0.5
    )
    assert rates.is_limited
    assert Rates(applications={"shop": OwnRates(user=1)}).is_limited
    assert not settings.load({}, {}).settings.rates.is_limited


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[rates]\nuser = -1", "rates.user (from PATH) is -1"),
        ("[rates]\nuser = 1e-9", "user 1e-09, which must be 0 or at least 0.001. (rates from PATH)"),
        ("[rates]\nuser_burst = 5", "user_burst, which needs user. (rates from PATH)"),
        ("[rates]\nusers = 5", "Unknown setting rates.users in PATH; did you mean rates.user or rates.user_burst?"),
        ("[rates.applications.shop]\nusers = 5", "`users`"),
        ("[rates.applications.shop]\nuser_burst = 5", "applications.shop.user_burst, which needs user"),
        ("[rates.applications]\nshop = 5", "rates.applications (from PATH)"),
        ("rates = 5", "Expected fields as in"),
    ],
)
def test_rates_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """The error names the field and what is wrong with it."""
    path = tmp_path / "q.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=re.escape(message.replace("PATH", str(path)))):
        settings.load({}, {}, config=path)
