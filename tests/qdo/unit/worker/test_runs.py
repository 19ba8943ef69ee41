"""The number of messages to take at once, and the age of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qdo.worker.runs import BatchSize, MessageRun
from tests.qdo.unit.samples import ONE, messages


@given(some.floats(1e-9, 100), some.integers(1, 5000))
def test_a_run_takes_about_as_long_as_it_should(each: float, most: int) -> None:
    """A run takes as many messages as fit into its time, at least one and at most the limit."""
    batch_size = BatchSize(0.5, most)
    for _ in range(500):
        batch_size.record_run(batch_size.max_messages, batch_size.max_messages * each)
    assert 1 <= batch_size.max_messages <= most
    assert batch_size.max_messages == 1 or batch_size.max_messages * each <= 0.5 * 1.01
    assert batch_size.max_messages == most or (batch_size.max_messages + 1) * each >= 0.5 * 0.99


def test_it_begins_with_few() -> None:
    """A run begins with few messages, because a slow handler must not get a thousand."""
    assert BatchSize(0.5, 1000).max_messages == 16
    assert BatchSize(0.5, 3).max_messages == 3


def test_it_turns_with_the_handler() -> None:
    """Runs get smaller soon after a handler slows down, and larger when it recovers; an empty run changes nothing."""
    batch_size = BatchSize(0.5, 1000)
    for _ in range(10):
        batch_size.record_run(1000, 0.01)
    assert batch_size.max_messages == 1000
    for _ in range(10):
        batch_size.record_run(1, 1.0)
    assert batch_size.max_messages <= 2
    batch_size.record_run(0, 0.0)
    assert batch_size.max_messages <= 2
    for _ in range(1000):
        batch_size.record_run(batch_size.max_messages, 0.00001)
    assert batch_size.max_messages == 1000


def test_a_handler_that_does_not_come_to_an_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A message in hand for over a minute is logged with its age, and again when that has doubled."""
    run = MessageRun(messages(1, 2), 1)
    run.begun = True
    for now, logged in ((50.0, 0), (100.0, 1), (150.0, 1), (200.0, 2)):
        assert run.check_age(ONE, now, lambda _: None) == now
        assert caplog.text.count(f"message {run.messages[0].id} of {ONE} for") == logged
