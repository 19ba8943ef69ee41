"""The checker finds what is wrong with a history, and nothing else."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from queuey import ids
from tests.faults.checking.checker import check
from tests.faults.checking.counts import checked, count
from tests.faults.checking.records import Event, History, Outcome, Post, Read, Sent, Shown, history_of
from tests.faults.checking.simulated import good_records
from tests.faults.checking.spoiled import SPOILS
from tests.harness.history import Fault

SEEDS = st.integers(0, 1 << 16)
RULES = {"answers", "G1", "lost", "G2", "settled", "truth", "G3", "page", "available"}
kept_records = lru_cache(32)(good_records)
"""Records are never changed, and to make one up takes longer than to check it."""


def name(seconds: float) -> str:
    """The id of an instant."""
    return ids.to_hex((ids.EPOCH_TICKS + round(seconds * ids.TICKS_PER_SECOND), ids.LOW_MIN))


def post(
    at: float, body: str, outcome: Outcome = "acknowledged", *, web: str = "web-1", after: str | None = None
) -> Post:
    """A post of one message that took 0.1 s; acknowledged with the instant of its start as id."""
    good = outcome == "acknowledged"
    return Post(
        start=at,
        end=at + 0.1,
        web=web,
        writer="w",
        queue="q",
        sent=(Sent(body, 1),),
        status=201 if good else 503,
        outcomes=(outcome,),
        ids=(name(at),) if good else (),
        after=after,
        retry_after=not good,
    )


def page(at: float, *bodies: tuple[float, str], reader: str = "r", since: float | None = None, final: int = 0) -> Read:
    """A page read in 0.1 s, with a horizon 1 s before its start to which the cursor goes."""
    return Read(
        start=at,
        end=at + 0.1,
        web="web-1",
        reader=reader,
        queue="q",
        partitions=(1,),
        status=200,
        since={} if since is None else {1: name(since)},
        horizon=name(at - 1),
        shown=tuple(Shown(1, name(when), body) for when, body in bodies),
        next={1: name(at - 1)},
        final=final,
    )


def full(*bodies: tuple[float, str]) -> list[Read]:
    """Three full reads that agree."""
    return [page(100 + n, *bodies, reader=f"f{n}", final=n) for n in (1, 2, 3)]


def rules(*events: Event) -> set[str]:
    """The rules that these records break."""
    return {violation.rule for violation in check(history_of(events))}


@given(seed=SEEDS)
@example(seed=69)
def test_good_histories(seed: int) -> None:
    """Nothing is found where nothing is wrong."""
    assert check(history_of(good_records(seed))) == []


@pytest.mark.parametrize("what", SPOILS)
@given(seed=st.integers(0, 31), choice=SEEDS)
def test_spoiled_histories(what: str, seed: int, choice: int) -> None:
    """Whatever single record is dropped, doubled or altered, the rule that it breaks says so."""
    expected, spoil = SPOILS[what]
    spoiled = spoil(kept_records(seed), random.Random(choice))
    if spoiled is not None:
        assert expected <= rules(*spoiled)


@pytest.mark.parametrize("what", SPOILS)
def test_spoils_apply(what: str) -> None:
    """Each way to spoil a history finds something to spoil in most of them."""
    _, spoil = SPOILS[what]
    assert sum(spoil(kept_records(seed), random.Random(seed)) is not None for seed in range(10)) > 7


def test_two_messages_in_order() -> None:
    """Two posts by X-After through two web processes, followed and then read in full, break nothing."""
    start: list[Event] = [post(10, "a"), page(10.5), post(11, "b", web="web-2", after=name(10))]
    follow = page(12.5, (10, "a"), (11, "b"), since=9.5)
    assert rules(*start, follow, *full((10, "a"), (11, "b"))) == set()
    assert rules(*start, structs.replace(follow, shown=follow.shown[1:]), *full((10, "a"), (11, "b"))) == {"G1"}
    assert rules(*start, follow, *full((10, "a"))) == {"G1", "lost"}
    turned = structs.replace(start[2], after=name(11.5))
    assert rules(*start[:2], turned, follow, *full((10, "a"), (11, "b"))) == {"G3"}


def test_acknowledged_below_a_cursor() -> None:
    """A message that becomes visible only after a reader has passed it is missed, though every full read shows it."""
    found = check(history_of([post(10, "a"), page(12), page(13, since=11), *full((10, "a"))]))
    assert [violation.rule for violation in found] == ["G1"]
    assert "12.000" in found[0].text, "the page that passed it is named"


def test_data_centres_that_are_apart() -> None:
    """What was posted in another data centre may come late, but not be lost; in one's own it may do neither."""
    other = post(10, "a", web="web-2")
    late = history_of([other, page(12), page(13, since=11), *full((10, "a"))])
    assert {violation.rule for violation in check(late)} == {"G1"}
    assert check(late, apart=True) == []
    lost = check(history_of([other, page(12), *full()]), apart=True)
    assert {violation.rule for violation in lost} == {"lost"}
    own = check(history_of([post(10, "a"), page(12), *full((10, "a"))]), apart=True)
    assert {violation.rule for violation in own} == {"G1"}


def test_outcomes_of_data_centres_that_are_apart() -> None:
    """A message that is taken back in its data centre may have been shown in another before that came over."""
    shown: list[Event] = [post(10.2, "a"), page(12, (10, "x"), (10.2, "a")), *full((10.2, "a"))]
    taken_back = history_of([post(10, "x", "none", web="web-2"), *shown])
    assert {violation.rule for violation in check(taken_back)} == {"G2"}
    assert check(taken_back, apart=True) == []
    assert {violation.rule for violation in check(history_of([post(10, "x", "none"), *shown]), apart=True)} == {"G2"}


def test_cursor_below_a_message() -> None:
    """A reader that has not come to a message yet has not missed it."""
    assert rules(post(10, "a"), page(10.5), *full((10, "a"))) == set()


def test_none_that_was_seen_once() -> None:
    """A refused message that one page showed breaks G2, even if it was gone by the end."""
    assert rules(post(10, "x", "none"), post(10.2, "a"), page(12, (10, "x"), (10.2, "a")), *full((10.2, "a"))) == {"G2"}


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([True, True, True], set()),
        ([False, False, False], set()),
        ([False, True, True], set()),
        ([True, False, False], {"settled"}),
        ([True, True, False], {"settled"}),
        ([False, False, True], {"settled"}),
    ],
)
def test_unknown_settles(contents: list[bool], expected: set[str]) -> None:
    """An unknown message may turn up in the first full read or the second, and then it stays as it is."""
    finals = [
        page(100 + n, *([(10.0, "x")] if there else []), (11, "a"), reader=f"f{n}", final=n)
        for n, there in enumerate(contents, 1)
    ]
    assert rules(post(10, "x", "unknown"), post(11, "a"), page(11), *finals) == expected


def test_two_full_reads_must_agree() -> None:
    """A history without two full reads after everything has settled proves nothing."""
    assert "settled" in rules(post(10, "a"), page(10), *full((10, "a"))[:2])


def test_failed_reads_keep_the_cursor() -> None:
    """A read that failed shows nothing and moves nothing."""
    failed = Read(12, 12.1, "web-1", "r", "q", (1,), 503, {1: name(10)}, retry_after=True)
    good: list[Event] = [post(10, "a"), page(11), page(12.5, (10, "a"), since=10), *full((10, "a"))]
    assert rules(*good, failed) == set()
    assert rules(*good, structs.replace(failed, retry_after=False)) == {"answers"}


def test_ids_of_one_process() -> None:
    """Ids of a process ascend for whoever has seen an answer, not for posts under way at the same time."""
    first = structs.replace(post(10, "a"), ids=(name(11),))
    at_once = structs.replace(post(10.05, "b"), ids=(name(10.5),))
    after = structs.replace(post(10.2, "c"), ids=(name(10.7),))
    tail: list[Event] = [page(10.9), *full((10.5, "b"), (11, "a"))]
    assert rules(first, at_once, *tail) == set()
    later: list[Event] = [page(10.9), *full((10.5, "b"), (10.7, "c"), (11, "a"))]
    assert rules(first, at_once, after, *later) == {"G3"}
    assert rules(first, at_once, structs.replace(after, web="web-2"), *later) == set()


def test_merged_pages_are_in_time_order() -> None:
    """A merged page goes by time over its partitions, one that is not merged by partition."""
    sent = [structs.replace(post(10 + n, "ab"[n]), sent=(Sent("ab"[n], 2 - n),)) for n in (0, 1)]
    wrong = (Shown(1, name(11), "b"), Shown(2, name(10), "a"))
    both = {1: name(50), 2: name(50)}
    reads = [
        structs.replace(page(11, reader=f"r{n}", final=n), shown=wrong, partitions=(1, 2), next=both, horizon=name(50))
        for n in range(4)
    ]
    assert rules(*sent, *reads) == set()
    assert rules(*sent, *reads[:3], structs.replace(reads[3], merge=True)) == {"page"}


def test_slow_answers() -> None:
    """A request may be slow only where its own web process was stopped meanwhile."""
    slow = structs.replace(post(10, "a"), end=40)
    rest: list[Event] = [page(10), post(60, "b"), page(60, (10, "a"), since=9), *full((10, "a"), (60, "b"))]
    assert rules(slow, *rest) == {"available"}
    assert rules(slow, *rest, Fault(15, 20, "pause", "node-1")) == {"available"}
    assert rules(slow, *rest, Fault(15, 20, "pause", "web-1")) == set()
    assert rules(slow, *rest, Fault(41, 45, "pause", "web-1")) == {"available"}


def test_requests_succeed_again() -> None:
    """After a fault and the grace, a web process must take posts and answer reads."""
    fault = Fault(20, 25, "kill", "node-1")
    refused = [post(40 + n, str(n), "none") for n in range(5)]
    events: list[Event] = [fault, *refused, post(45, "b"), page(41), *full((45, "b"))]
    assert rules(*events) == set()
    assert rules(*events, post(45, "c", "none", web="web-2")) == {"available"}, "at web-2"
    assert rules(fault, *refused, page(41), *full()) == {"available"}, "no post"
    assert rules(fault, post(45, "b"), page(26), *full((45, "b"))) == {"available"}, "no read"
    assert rules(fault, post(29, "b"), page(29), *full((29, "b"))) == {"available"}, "within the grace"
    early: list[Event] = [post(10, "x", "none"), post(19, "y", "none"), *events]
    assert rules(*early) == {"available"}, "before the fault"


def test_every_rule_is_tested() -> None:
    """There is a way to spoil a history for each rule, and each is among what a report says was checked."""
    assert set().union(*(rules for rules, _ in SPOILS.values())) == RULES
    assert checked(count(history_of(kept_records(1)), deadline=1.0)).keys() == RULES


def test_counts() -> None:
    """The numbers that a run is reported with."""
    slow = structs.replace(post(30, "late", "none"), end=32)
    events: list[Event] = [
        post(10, "a"),
        post(11, "x", "none"),
        slow,
        post(12, "u", "unknown"),
        page(13, (10, "a")),
        Fault(9, 20, "kill", "n"),
    ]
    events.extend(full((10, "a"), (12, "u")))
    counts = count(history_of(events), deadline=1.0)
    expected = {"acknowledged": 1, "none": 2, "none_late": 1, "unknown": 1, "unknown_shown": 1}
    expected |= {"refused": 3, "unanswered": 0, "pages": 1, "shown": 1, "failed_pages": 0, "during_faults": 1}
    assert counts == expected | {"calls": 8, "full": 6, "seen": 7}


def test_empty_history() -> None:
    """An empty history has nothing to agree on."""
    assert [violation.rule for violation in check(History())] == ["settled"]
