"""Which messages of a partition may be handled now."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as some
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from qdo.worker.keys import key_by
from qdo.worker.lanes import Held, KeyedLane, Lane, OrderedLane, Run
from queuey.client import Message
from tests.qdo.unit.worker.letters import message

KEYS = ["a", "b", "c", "d", None]
PARALLEL, WINDOW = 3, 20


class LaneModel(RuleBasedStateMachine):
    """A lane is fed and worked on in any order; what it must never do is watched from outside."""

    runs = Bundle("runs")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.lane = self.new_lane()
        self.sent: list[Message] = []
        self.done: list[Message] = []
        self.running: list[Run] = []
        self.failed: dict[str, int] = {}
        self.holding: list[Held] = []

    def new_lane(self) -> Lane:
        """An ordered one; keyed ones override it."""
        return OrderedLane()

    def key(self, one: Message) -> Hashable:
        """Messages with one key keep their order: here all of them."""
        return None

    @rule(keys=some.lists(some.sampled_from(KEYS), min_size=1, max_size=8))
    def add(self, keys: list[str | None]) -> None:
        """More messages come."""
        start = len(self.sent)
        new = [message(start + at, headers={"key": key} if key else {}) for at, key in enumerate(keys)]
        self.sent += new
        self.lane.add(new)

    @rule(target=runs, most=some.integers(1, 9))
    def take(self, most: int) -> Any:  # noqa: ANN401 - a run, or nothing
        """Somebody asks for work."""
        run = self.lane.take(most)
        if run is None:
            return multiple()
        assert 1 <= len(run.messages) <= most
        for one in run.messages:
            assert run.attempt == self.failed.get(one.id, 0) + 1
        self.running.append(run)
        return run

    @rule(target=held, run=consumes(runs), part=some.floats(0, 1), failed=some.booleans())
    def settle(self, run: Run, part: float, failed: bool) -> Any:  # noqa: ANN401, FBT001 - drawn; held, or nothing
        """Some of it is handled; then it fails, or is cut short."""
        handled = round(part * len(run.messages))
        failed = failed and handled < len(run.messages)
        self.running.remove(run)
        self.done += run.messages[:handled]
        before = self.lane.count
        found = self.lane.settle(run, handled, failed=failed)
        assert before - self.lane.count == handled
        if not failed:
            assert found is None
            return multiple()
        assert found is not None
        assert found.message is run.messages[handled]
        self.failed[found.message.id] = found.attempt
        self.holding.append(found)
        return found

    @rule(one=consumes(held))
    def again(self, one: Held) -> None:
        """It is to be tried again."""
        self.holding.remove(one)
        self.lane.again(one)

    @rule(one=consumes(held))
    def finish(self, one: Held) -> None:
        """It was given up."""
        self.holding.remove(one)
        self.done.append(one.message)
        self.lane.finish(one)

    @invariant()
    def keeps_order(self) -> None:
        """Messages with one key are done in the order in which they came, and never two at a time."""
        order = {one.id: at for at, one in enumerate(self.sent)}
        for key in {self.key(one) for one in self.sent}:
            mine = [order[one.id] for one in self.done if self.key(one) == key]
            assert mine == sorted(set(mine))
            assert sum(any(self.key(one) == key for one in run.messages) for run in self.running) <= 1
            for run in self.running:
                now = [order[one.id] for one in run.messages if self.key(one) == key]
                assert now == sorted(now)
                assert not mine or not now or mine[-1] < now[0]

    @invariant()
    def tells_how_far_it_is(self) -> None:
        """The end lies before the first message that is not done."""
        done = {one.id for one in self.done}
        first = next((at for at, one in enumerate(self.sent) if one.id not in done), len(self.sent))
        assert self.lane.end == (self.sent[first - 1].id if first else None)
        assert self.lane.count == len(self.sent) - len(done)

    def teardown(self) -> None:
        """Whatever happened, everything can be finished from there, and nothing is forgotten."""
        for one in list(self.holding):
            self.finish(one)
        for run in list(self.running):
            self.settle_all(run)
        while (more := self.lane.take(5)) is not None:
            self.running.append(more)
            self.settle_all(more)
        assert len(self.done) == len(self.sent)
        self.tells_how_far_it_is()

    def settle_all(self, run: Run) -> None:
        """Handles all of a run."""
        self.running.remove(run)
        self.done += run.messages
        self.lane.settle(run, len(run.messages))
        self.keeps_order()


class KeyedModel(LaneModel):
    """The same for a lane that handles several keys at a time."""

    def new_lane(self) -> Lane:
        """A keyed one."""
        return KeyedLane(key_by("header:key"), PARALLEL, WINDOW)

    def key(self, one: Message) -> Hashable:
        """The header."""
        return one.headers.get("key")

    @invariant()
    def keeps_bounds(self) -> None:
        """There are never more runs than may be."""
        assert len(self.running) <= PARALLEL


TestOrderedLane = LaneModel.TestCase
TestKeyedLane = KeyedModel.TestCase


def fed(lane: Lane, keys: str) -> list[Message]:
    """Feeds one message for each letter, which is its key."""
    messages = [message(at, headers={"key": key}) for at, key in enumerate(keys)]
    lane.add(messages)
    return messages


def test_a_failed_message_travels_alone_when_it_is_tried_again() -> None:
    """Its attempt is another than that of those behind it, so they are not in its run."""
    lane = OrderedLane()
    messages = fed(lane, "aaa")
    run = lane.take(10)
    assert run is not None
    held = lane.settle(run, 1, failed=True)
    assert held == Held(messages[1], 1)
    assert lane.take(10) is None
    lane.again(held)
    alone = lane.take(10)
    assert alone is not None
    assert alone == Run([messages[1]], 2)
    lane.settle(alone, 1)
    assert lane.take(10) == Run([messages[2]], 1)


def test_a_held_message_holds_up_only_its_own_key() -> None:
    """Others go on; the end stays before the held one until it is done, then passes everything."""
    lane = KeyedLane(key_by("header:key"), 2, 100)
    messages = fed(lane, "abab")
    first = lane.take(2)
    assert first is not None
    assert [one.headers["key"] for one in first.messages] == ["a", "a"]
    held = lane.settle(first, 0, failed=True)
    other = lane.take(10)
    assert other is not None
    assert [one.headers["key"] for one in other.messages] == ["b", "b"]
    lane.settle(other, 2)
    assert (lane.take(10), lane.end) == (None, None)
    assert held is not None
    lane.finish(held)
    assert lane.end == messages[1].id
    rest = lane.take(10)
    assert rest is not None
    lane.settle(rest, 1)
    assert lane.end == messages[3].id


def test_each_message_begins_at_its_first_attempt() -> None:
    """That a message with the same key needed two attempts says nothing about the next."""
    lane = KeyedLane(key_by("header:key"), 2, 100)
    fed(lane, "aa")
    for attempt in (1, 2):
        run = lane.take(1)
        assert run is not None
        assert run.attempt == attempt
        held = lane.settle(run, attempt - 1, failed=attempt == 1)
        if held is not None:
            lane.again(held)
    last = lane.take(1)
    assert last is not None
    assert last.attempt == 1


def test_work_is_shared_out_evenly() -> None:
    """One run does not take everything while other places stay empty."""
    lane = KeyedLane(key_by("header:key"), 4, 1000)
    fed(lane, "abcdefgh" * 2)
    sizes = [len(run.messages) for run in iter(lambda: lane.take(100), None)]
    assert sizes == [4, 4, 4, 4]


def test_no_more_is_wanted_than_the_window() -> None:
    """One unfinished message lets the lane hold only so many behind it, though they are done."""
    lane = KeyedLane(key_by("header:key"), 2, 10)
    fed(lane, "abbbbbbbbb")
    assert lane.full
    run = lane.take(1)
    other = lane.take(100)
    assert run is not None
    assert other is not None
    lane.settle(other, len(other.messages))
    assert lane.full
    lane.settle(run, 1)
    assert not lane.full


@given(some.lists(some.sampled_from("abcd"), min_size=1, max_size=30), some.randoms(use_true_random=False))
def test_a_lane_that_closes_fills_its_gaps_and_begins_nothing_else(keys: list[str], choice: Random) -> None:
    """What was done is recorded at the end, and nothing behind it has been handled in vain."""
    lane = KeyedLane(key_by("header:key"), 3, 100)
    messages = fed(lane, "".join(keys))
    order = {one.id: at for at, one in enumerate(messages)}
    done: set[int] = set()
    runs = []
    for _ in range(choice.randrange(12)):
        if (run := lane.take(choice.randrange(1, 5))) is not None:
            runs.append(run)
        if runs and choice.random() < 0.6:
            _settle(lane, runs.pop(choice.randrange(len(runs))), choice, order, done)
    for run in runs:
        _settle(lane, run, choice, order, done)
    last = max(done, default=-1)
    more = lane.narrow()
    while (run := lane.take(choice.randrange(1, 5))) is not None:
        assert more
        _settle(lane, run, None, order, done)
    assert max(done, default=-1) == last
    assert lane.end == (messages[last].id if last >= 0 else None)
    assert not lane.waiting


def _settle(lane: Lane, run: Run, choice: Random | None, order: dict[str, int], done: set[int]) -> None:
    """Handles a run, or a part of it."""
    handled = len(run.messages) if choice is None else choice.randrange(len(run.messages) + 1)
    done |= {order[one.id] for one in run.messages[:handled]}
    lane.settle(run, handled)


def test_a_failure_while_a_lane_closes_ends_what_cannot_be_recorded() -> None:
    """Behind a held message nothing is handled any more, for it would be handled again elsewhere."""
    lane = KeyedLane(key_by("header:key"), 1, 100)
    messages = fed(lane, "abcd")
    for key in "abcd":
        run = lane.take(1)
        assert run is not None
        assert run.keys == (key,)
        lane.settle(run, 1 if key == "d" else 0)
    assert lane.narrow()
    run = lane.take(1)
    assert run == Run([messages[0]], 1, ("a",))
    assert lane.settle(run, 0, failed=True) is not None
    assert lane.take(3) is None
    assert not lane.waiting
