"""Settings of consumers and workers, retries, and message keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qdo.errors import InvalidArgument
from qdo.settings import ConsumerSettings, Retry, WorkerSettings, key_by
from tests.qdo.unit.samples import message

NAN, INFINITE = float("nan"), float("inf")
REFUSED: dict[type[ConsumerSettings | WorkerSettings | Retry], list[dict[str, Any]]] = {
    ConsumerSettings: [
        *({"start": "now"}, {"page": 0}, {"page": 1001}, {"prefetch_messages": 0}, {"prefetch_bytes": 0}),
        *({"wait": 0}, {"wait": 20.5}, {"wait": NAN}, {"discover": 0}, {"settle": -1}, {"grace": -1}),
        *({"revoke_timeout": 0}, {"commit_every": 0}),
    ],
    WorkerSettings: [
        *({"threads": 0}, {"tasks": 0}, {"processes": -1}, {"parallel": 0}, {"window": 0}, {"batch": 0}),
        *({"slice": 0}, {"slice": NAN}, {"time_limit": 0}, {"time_limit": INFINITE}, {"dead_ttl": 0}),
        *({"dead_ttl": 33_554_433}, {"dead_queue": ""}, {"commit_messages": 0}, {"commit_seconds": 0}),
        *({"drain": -1}, {"lag_seconds": 0}, {"on_failure": "ignore"}, {"by": "customer"}),
    ],
    Retry: [{"attempts": -1}, {"base": -1.0}, {"base": 2.0, "cap": 1.0}, {"cap": INFINITE}, {"base": NAN}],
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_cannot_work_is_refused_by_name(kind: type[ConsumerSettings | WorkerSettings | Retry]) -> None:
    """A setting out of its bounds is refused by its name, so that nothing spins or stands still."""
    for wrong in REFUSED[kind]:
        with pytest.raises(InvalidArgument) as refused:
            kind(**wrong)
        assert next(iter(wrong)) in str(refused.value) or not wrong.keys().isdisjoint(
            {"dead_queue", "by", "base", "cap"}
        )


def test_the_bounds_themselves_are_fine() -> None:
    """Extreme values are allowed: no drain, no time limit, one of everything."""
    WorkerSettings(drain=0, time_limit=None, threads=1, tasks=1, parallel=1, window=1, batch=1, commit_messages=1)
    assert (
        ConsumerSettings(page=1, prefetch_messages=1, prefetch_bytes=1, settle=0, commit_every=0.1).start == "earliest"
    )


draws = some.floats(0, 1)


@given(some.integers(1, 200), draws, some.floats(0, 100), some.floats(0, 1000))
def test_a_pause_is_drawn_from_zero_to_a_bound_that_doubles(
    attempt: int, draw: float, base: float, more: float
) -> None:
    """The pause is the drawn part of ``base``, doubled with each attempt, and never above ``cap``."""
    retry = Retry(attempts=0, base=base, cap=base + more)
    pause = retry.after(attempt, (), draw)
    assert pause is not None
    assert pause == pytest.approx(draw * min(base + more, base * 2.0 ** (attempt - 1)))


@given(some.integers(1, 50), draws)
def test_there_are_as_many_attempts_as_allowed(attempts: int, draw: float) -> None:
    """After each attempt but the last allowed one another follows."""
    retry = Retry(attempts=attempts)
    followed = [retry.after(attempt, (), draw) is not None for attempt in range(1, attempts + 1)]
    assert followed == [True] * (attempts - 1) + [False]


def test_an_error_that_never_passes_is_not_tried_again() -> None:
    """A class named in ``never`` ends the attempts at once, and so do its subclasses."""
    retry = Retry(never=("LookupError",))
    assert retry.after(1, ("KeyError", "LookupError", "Exception"), 0.5) is None
    assert retry.after(1, ("ValueError", "Exception"), 0.5) is not None


def test_a_header_is_a_key_whatever_its_case() -> None:
    """Names of headers are lower-cased, and so is the name of the key; a missing header gives the key None."""
    key = key_by("header:Customer")
    assert key(message(1, headers={"customer": "7"})) == "7"
    assert key(message(2)) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"order": {"customer": 7}}, 7),
        ('{"order": {"customer": "x"}}', "x"),
        (b'{"order": {"customer": "x"}}', "x"),
        ({"order": {"customer": None}}, None),
        ({"order": {}}, None),
        ({"order": 5}, None),
        ([1, 2], None),
        ("no JSON", None),
        (b"\xff\xfe", None),
        ("[" * 100_000, None),
    ],
    ids=["value", "text", "bytes", "null", "missing", "no object", "list", "no JSON", "no text", "too deep"],
)
def test_a_field_of_the_body_is_a_key(body: Any, expected: object) -> None:  # noqa: ANN401 - any JSON value
    """A JSON value and its text have the same key; a body without the field has none."""
    assert key_by("body:order.customer")(message(1, body=body)) == expected


def test_a_key_may_be_any_value() -> None:
    """Lists and objects are keys too, equal if and only if they are equal."""
    key = key_by("body:place")
    same = [key(message(1, body={"place": [1, {"a": 2}]})), key(message(2, body={"place": [1, {"a": 2}]}))]
    other = key(message(3, body={"place": [1, {"a": 3}]}))
    assert len({*same, other}) == 2


@pytest.mark.parametrize("wrong", ["customer", "header:", "body:", "body:a..b", "cookie:x", ""])
def test_what_names_no_key_is_refused(wrong: str) -> None:
    """Only a header or a field of the body can be a key."""
    with pytest.raises(InvalidArgument):
        key_by(wrong)
