"""What becomes of a message that failed."""

from __future__ import annotations

from typing import get_args

import pytest

from qdo.worker.failure import DeadLetterIt, Failure, RetryLater, SkipMessage, StopTheWorker, StopWorker, decide
from qdo.worker.settings import OnFailure, Retry, WorkerSettings

FAILURE = Failure.of(ValueError("x"))
RETRY = Retry(attempts=3, base=8, cap=8)


def test_it_is_tried_again_before_anything_else() -> None:
    """As long as there are attempts left, no setting gives it up."""
    for choice in get_args(OnFailure):
        settings = WorkerSettings(retry=RETRY, on_failure=choice)
        assert decide(settings, "orders", FAILURE, 2, 0.25) == RetryLater(2.0)


@pytest.mark.parametrize(
    ("choice", "decision"),
    [
        ("dead-letter", DeadLetterIt()),
        ("stop", StopTheWorker("message")),
        ("retry", RetryLater(2.0)),
        ("skip", SkipMessage("the settings say so")),
    ],
)
def test_at_last_the_settings_decide(choice: str, decision: object) -> None:
    """After the last attempt it becomes what the settings say; with ``retry`` there is no last one."""
    settings = WorkerSettings(retry=RETRY, on_failure=choice)  # type: ignore[arg-type]
    assert decide(settings, "orders", FAILURE, 3, 0.25) == decision


def test_a_dead_letter_does_not_die_again() -> None:
    """What comes from a queue of dead letters is skipped instead, unless that is asked for."""
    assert isinstance(decide(WorkerSettings(), "orders.dead", FAILURE, 5, 0), SkipMessage)
    assert isinstance(decide(WorkerSettings(dead_queue="crypt"), "crypt", FAILURE, 5, 0), SkipMessage)
    assert decide(WorkerSettings(dead_queue="crypt"), "orders", FAILURE, 5, 0) == DeadLetterIt()
    assert decide(WorkerSettings(bury_dead=True), "orders.dead", FAILURE, 5, 0) == DeadLetterIt()


def test_what_is_meant_to_end_the_worker_does() -> None:
    """No number of attempts and no setting keeps StopWorker or Ctrl-C from ending it."""
    settings = WorkerSettings(on_failure="retry")
    assert decide(settings, "orders", Failure.of(StopWorker()), 1, 0) == StopTheWorker("asked")
    assert decide(settings, "orders", Failure.of(KeyboardInterrupt(), interrupts=True), 1, 0) == StopTheWorker("error")
