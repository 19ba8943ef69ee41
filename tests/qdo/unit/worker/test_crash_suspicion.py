"""Messages that may have crashed their worker: what is noted of them, and the attempts that they are charged.

tests/qdo/worker/test_random_handlers.py holds that workers give up the culprits and nobody else.
"""

from __future__ import annotations

import pytest

from qdo.group.records import CommittedOffset, HandlingNote
from qdo.worker.crash_suspicion import CrashSuspicion, HungAttempts
from tests.qdo.unit.samples import ONE, messages

FIRST, SECOND, THIRD, FOURTH = messages(1, 4)
BEFORE = messages(0, 0)[0].id


def suspicion_of(note: HandlingNote | None, attempts: int = 5, *, held: bool = True) -> CrashSuspicion:
    """Returns the suspicion of a partition that was handled up to the first message."""
    return CrashSuspicion(CommittedOffset(BEFORE, held=held, note=note), FIRST, 2, attempts)


def test_nothing_is_noted_after_a_clean_hand_over() -> None:
    """After a clean hand-over nothing is suspected, so that the normal case costs nothing."""
    assert CrashSuspicion(CommittedOffset(), FIRST, 10, 5).is_over
    assert suspicion_of(None, held=False).is_over


def test_a_hung_attempt_counts_until_its_message_is_done() -> None:
    """A hung attempt of this worker stands in for a note that is missing or counts less, but hides none of the next."""
    partition, hung = ONE, HandlingNote(FIRST.id, 2, last=True)
    fewer, later = HandlingNote(FIRST.id, 1), HandlingNote(SECOND.id, 2, last=True)
    for committed, note in (
        (CommittedOffset(), hung),
        (CommittedOffset(BEFORE, note=fewer), hung),
        (CommittedOffset(BEFORE, note=HandlingNote(FIRST.id, 3)), HandlingNote(FIRST.id, 3)),
        (CommittedOffset(FIRST.id), None),
        (CommittedOffset(FIRST.id, note=later), later),
    ):
        attempts = HungAttempts()
        attempts.add(partition, hung)
        assert attempts.take_over(partition, committed).note == note
        assert attempts.notes == {}


def test_runs_are_noted_for_a_while_after_a_loss() -> None:
    """After an owner that did not release, as many messages as may have been in hand are watched."""
    suspicion = suspicion_of(None)
    assert not suspicion.is_suspected(FIRST)
    assert suspicion.begin_run([FIRST, SECOND]) == HandlingNote(SECOND.id, 2)
    suspicion.record_handled(1)
    assert suspicion.make_final_note() == HandlingNote(SECOND.id, 0)
    suspicion.record_handled(1)
    assert suspicion.is_over
    assert suspicion.make_final_note() is None


def test_a_run_that_was_in_hand_at_a_loss_is_taken_apart() -> None:
    """Messages of a run that was in hand are noted one by one, later ones by the run; none is charged an attempt."""
    suspicion = suspicion_of(HandlingNote(SECOND.id, 2))
    assert [suspicion.is_suspected(each) for each in (FIRST, SECOND, THIRD)] == [True, True, False]
    assert [suspicion.attempt_number(each) for each in (FIRST, SECOND, THIRD)] == [1, 1, 1]
    assert suspicion.begin_run([FIRST]) == HandlingNote(FIRST.id, 3)
    assert suspicion.begin_run([THIRD, FOURTH]) == HandlingNote(FOURTH.id, 2)


def test_a_message_that_was_in_hand_by_itself_is_charged() -> None:
    """Each loss is an attempt at a message that was noted alone, also if the partition was handed over in between."""
    suspicion = suspicion_of(HandlingNote(FIRST.id, 3), held=False)
    assert [suspicion.attempt_number(each) for each in (FIRST, SECOND)] == [4, 1]
    assert suspicion.begin_run([FIRST]) == HandlingNote(FIRST.id, 4)
    assert not suspicion.must_run_alone(FIRST)


NOTES = [None, HandlingNote(FIRST.id, 2), HandlingNote(SECOND.id, 2), HandlingNote(FIRST.id, 4)]


@pytest.mark.parametrize("found", NOTES)
def test_being_handed_over_costs_no_attempt(found: HandlingNote | None) -> None:
    """Hand-overs cost no attempt, however many; the partition stays watched, and unstarted messages keep their note."""
    suspicion = suspicion_of(found)
    assert suspicion.make_final_note() == found
    suspicion.begin_run([FIRST])
    again = suspicion_of(suspicion.make_final_note(), held=False)
    assert not again.is_over
    assert (again.attempt_number(FIRST), again.must_run_alone(FIRST)) == (
        suspicion.attempt_number(FIRST),
        suspicion.must_run_alone(FIRST),
    )
    assert again.begin_run([FIRST]) == suspicion.begin_run([FIRST])
