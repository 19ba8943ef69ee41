"""The held messages of a partition, in order or by key, and the position up to which it is handled."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from qdo.settings import key_by
from qdo.worker.partition_work import FailedMessage, KeyedQueue, OrderedQueue, PartitionQueue
from qdo.worker.runs import MessageRun
from queuey.client import Message
from tests.qdo.unit.samples import message

KEYS = ["a", "b", "c", "d", None]
PARALLEL, WINDOW = 3, 20


class QueueModel(RuleBasedStateMachine):
    """Feeds a partition queue and works on it in any order, and checks its invariants from outside."""

    runs = Bundle("runs")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.partition_queue = self.new_lane()
        self.sent: list[Message] = []
        self.done: list[Message] = []
        self.ended: list[Message] = []
        """Those done, and those before the present message of a run of which others were taken back."""
        self.present: dict[MessageRun, int] = {}
        """The index of that message."""
        self.running: list[MessageRun] = []
        self.failed: dict[str, int] = {}
        self.holding: list[FailedMessage] = []

    def new_lane(self) -> PartitionQueue:
        return OrderedQueue()

    def key(self, one: Message) -> Hashable:
        return None

    @rule(keys=some.lists(some.sampled_from(KEYS), min_size=1, max_size=8))
    def add(self, keys: list[str | None]) -> None:
        start = len(self.sent)
        new = [message(start + at, headers={"key": key} if key else {}) for at, key in enumerate(keys)]
        self.sent += new
        self.partition_queue.add(new)

    @rule(target=runs, most=some.integers(1, 9))
    def take(self, most: int) -> Any:  # noqa: ANN401 - a run, or nothing
        run = self.partition_queue.take(most)
        if run is None:
            return multiple()
        assert 1 <= len(run.messages) <= most
        for taken in run.messages:
            assert run.attempt == self.failed.get(taken.id, 0) + 1
        self.running.append(run)
        return run

    @rule(target=held, run=consumes(runs), part=some.floats(0, 1), failed=some.booleans())
    def settle(self, run: MessageRun, part: float, failed: bool) -> Any:  # noqa: ANN401, FBT001 - drawn; held, or nothing
        """Handles a part of a run; then the run fails, or is cut short."""
        present = self.present.get(run, 0)
        handled = present + round(part * (len(run.messages) - present))
        failed = failed and handled < len(run.messages)
        self._end(run, handled)
        before = self.partition_queue.count
        settled = self.partition_queue.settle(run, handled, failed=failed)
        assert before - self.partition_queue.count == handled
        if not failed:
            assert settled is None
            return multiple()
        assert settled is not None
        assert settled.message is run.messages[handled]
        self.failed[settled.message.id] = settled.attempt
        self.holding.append(settled)
        return settled

    @rule(one=consumes(held))
    def again(self, one: FailedMessage) -> None:
        """Marks a message for another attempt."""
        self.holding.remove(one)
        self.partition_queue.retry(one)

    @rule(one=consumes(held))
    def finish(self, one: FailedMessage) -> None:
        """Gives a message up."""
        self.holding.remove(one)
        self.done.append(one.message)
        self.ended.append(one.message)
        self.partition_queue.finish(one)

    @invariant()
    def keeps_order(self) -> None:
        """Messages with one key are done in the order in which they came, and never two at a time."""
        order = {one.id: at for at, one in enumerate(self.sent)}
        for key in {self.key(one) for one in self.sent}:
            mine = [order[one.id] for one in self.ended if self.key(one) == key]
            assert mine == sorted(set(mine))
            under_way = [run.messages[self.present.get(run, 0) :] for run in self.running]
            assert sum(any(self.key(one) == key for one in messages) for messages in under_way) <= 1
            for messages in under_way:
                now = [order[one.id] for one in messages if self.key(one) == key]
                assert now == sorted(now)
                assert not mine or not now or mine[-1] < now[0]

    @invariant()
    def tells_how_far_it_is(self) -> None:
        """The end lies before the first message that is not done."""
        done = {one.id for one in self.done}
        first = next((at for at, one in enumerate(self.sent) if one.id not in done), len(self.sent))
        assert self.partition_queue.end == (self.sent[first - 1].id if first else None)
        assert self.partition_queue.count == len(self.sent) - len(done)

    def teardown(self) -> None:
        """From any state everything can be finished, and nothing is left over."""
        for held_message in list(self.holding):
            self.finish(held_message)
        for run in list(self.running):
            self.settle_all(run)
        while (more := self.partition_queue.take(5)) is not None:
            self.running.append(more)
            self.settle_all(more)
        assert len(self.done) == len(self.sent)
        self.tells_how_far_it_is()

    def _end(self, run: MessageRun, handled: int) -> None:
        self.running.remove(run)
        self.done += run.messages[:handled]
        self.ended += run.messages[self.present.pop(run, 0) : handled]

    def settle_all(self, run: MessageRun) -> None:
        self._end(run, len(run.messages))
        self.partition_queue.settle(run, len(run.messages))
        self.keeps_order()


class KeyedModel(QueueModel):
    """The same for a partition queue that handles several keys at a time."""

    def new_lane(self) -> PartitionQueue:
        return KeyedQueue(key_by("header:key"), PARALLEL, WINDOW)

    def key(self, one: Message) -> Hashable:
        return one.headers.get("key")

    @rule(run=QueueModel.runs, part=some.floats(0, 1))
    def take_back(self, run: MessageRun, part: float) -> None:
        """Takes back what a run has not begun; other messages, also of keys that the run had, may begin elsewhere."""
        if run not in self.present:
            for _ in range(round(part * len(run.messages))):
                next(run.pending)
            self.partition_queue.wait_again(run, run.take_back())  # type: ignore[union-attr] # it has keys
            self.present[run] = max(0, len(run.messages) - 1)
            self.ended += run.messages[:-1]
            waiting = {self.key(one) for one in self.sent} - {self.key(one) for one in run.messages[-1:]}
            assert waiting.isdisjoint(run.keys)

    @invariant()
    def keeps_bounds(self) -> None:
        """The number of runs is bounded."""
        assert len(self.running) <= PARALLEL


TestOrderedQueue = QueueModel.TestCase
TestKeyedQueue = KeyedModel.TestCase
TestOrderedQueue.settings = settings(max_examples=max(1, settings().max_examples // 4))
TestKeyedQueue.settings = settings(max_examples=max(1, 2 * settings().max_examples // 3))


def feed_keys(partition_queue: PartitionQueue, keys: str) -> list[Message]:
    messages = [message(at, headers={"key": key}) for at, key in enumerate(keys)]
    partition_queue.add(messages)
    return messages


def test_work_is_shared_out_evenly() -> None:
    """One run does not take everything while other slots are free."""
    partition_queue = KeyedQueue(key_by("header:key"), 4, 1000)
    feed_keys(partition_queue, "abcdefgh" * 2)
    sizes = [len(run.messages) for run in iter(lambda: partition_queue.take(100), None)]
    assert sizes == [4, 4, 4, 4]


def test_no_more_is_wanted_than_the_window() -> None:
    """Behind an unfinished message the queue holds only a window of messages, even if they are done."""
    partition_queue = KeyedQueue(key_by("header:key"), 2, 10)
    feed_keys(partition_queue, "abbbbbbbbb")
    assert partition_queue.is_full
    run = partition_queue.take(1)
    other = partition_queue.take(100)
    assert run is not None
    assert other is not None
    partition_queue.settle(other, len(other.messages))
    assert partition_queue.is_full
    partition_queue.settle(run, 1)
    assert not partition_queue.is_full


@given(some.lists(some.sampled_from("abcd"), min_size=1, max_size=30), some.randoms(use_true_random=False))
def test_a_lane_that_closes_fills_its_gaps_and_begins_nothing_else(keys: list[str], choice: Random) -> None:
    """A queue that closes fills the gaps before finished messages, so that they are recorded, and begins no others."""
    partition_queue = KeyedQueue(key_by("header:key"), 3, 100)
    messages = feed_keys(partition_queue, "".join(keys))
    order = {one.id: at for at, one in enumerate(messages)}
    done: set[int] = set()
    runs = []
    for _ in range(choice.randrange(12)):
        if (run := partition_queue.take(choice.randrange(1, 5))) is not None:
            runs.append(run)
        if runs and choice.random() < 0.6:
            _settle(partition_queue, runs.pop(choice.randrange(len(runs))), choice, order, done)
    for run in runs:
        _settle(partition_queue, run, choice, order, done)
    last = max(done, default=-1)
    more = partition_queue.keep_gap_fillers()
    while (run := partition_queue.take(choice.randrange(1, 5))) is not None:
        assert more
        _settle(partition_queue, run, None, order, done)
    assert max(done, default=-1) == last
    assert partition_queue.end == (messages[last].id if last >= 0 else None)
    assert not partition_queue.has_waiting


def _settle(
    partition_queue: PartitionQueue, run: MessageRun, choice: Random | None, order: dict[str, int], done: set[int]
) -> None:
    handled = len(run.messages) if choice is None else choice.randrange(len(run.messages) + 1)
    done |= {order[one.id] for one in run.messages[:handled]}
    partition_queue.settle(run, handled)


def test_a_failure_while_a_lane_closes_ends_what_cannot_be_recorded() -> None:
    """A failure while closing ends the messages behind it, because they will be handled again elsewhere."""
    partition_queue = KeyedQueue(key_by("header:key"), 1, 100)
    messages = feed_keys(partition_queue, "abcd")
    for key in "abcd":
        run = partition_queue.take(1)
        assert run is not None
        assert run.keys == (key,)
        partition_queue.settle(run, 1 if key == "d" else 0)
    assert partition_queue.keep_gap_fillers()
    run = partition_queue.take(1)
    assert run is not None
    assert (run.messages, run.attempt, run.keys) == ([messages[0]], 1, ("a",))
    held = partition_queue.settle(run, 0, failed=True)
    assert held is not None
    assert partition_queue.keep_gap_fillers() == {message.id for message in messages[:3]}
    partition_queue.leave(held)
    assert partition_queue.keep_gap_fillers() == set()
    assert partition_queue.take(3) is None
    assert not partition_queue.has_waiting
    assert partition_queue.done_behind
