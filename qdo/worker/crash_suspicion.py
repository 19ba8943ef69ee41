"""Messages that may have ended a worker: how they are found, and given up.

A message that crashes its worker, or holds it up until its session ends, leaves no error. So that it
does not end every worker in turn, the offset's record says whether the owner before released the partition. This costs
nothing while no session is lost::

    ordinary ──lost──► watched ──lost with a run──► suspected ──lost, and again──► last attempt ──lost──► given up
        ▲                │  ▲                           │                              │
        └─enough handled─┘  └───────────ended───────────┴──────────────────────────────┘

ordinary      Only offsets are recorded.
watched       One write before each run records the offset, the last message of the run, and how many sessions are lost
              if this one is, too. Runs are as long as ever. It ends after as many messages as could be in flight.
suspected     The messages of a run that was lost are handled one by one, other partitions beside them. The note is then
              about a single message: another loss is an attempt at it, together with those before.
last attempt  The worker handles nothing else, and the note says so. When the message has ended, that is recorded before
              another one begins.

Several partitions of a worker may have a suspected message, and one of them is the cause: a message is given up only if
it is lost when it is the only one. An owner that hands the partition back records the note without its own attempt. The
next owner goes on from there: being handed over costs no attempt, and does not end the watch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from qdo.coordination import CommittedOffset, HandlingNote
from qdo.partitions import Partition
from queuey.client import Message, order_of


class CrashSuspicion:
    """The suspicion about one partition while one worker owns it. Pure: it decides and does nothing.

    Args:
        found: The offset when the partition was taken.
        first: The message behind that offset.
        watch: Number of messages that are watched.
        attempts: Max attempts at a message; 0: no limit.
    """

    def __init__(self, found: CommittedOffset, first: Message, watch: int, attempts: int) -> None:
        self._found = found.note
        self._single = found.note is not None and (found.note.last or found.note.until == first.id)
        self._left = watch if found.held or found.note is not None else 0
        self._attempts = attempts
        self._begun: Sequence[Message] = ()

    @property
    def over(self) -> bool:
        return self._left <= 0

    def suspected(self, message: Message) -> bool:
        """Returns True for a message that may have been in flight when a session was lost that had noted it."""
        found = self._found
        return found is not None and found.lost > 0 and order_of(message.id) <= order_of(found.until)

    def lost(self, message: Message) -> int:
        """Returns how many attempts at a message have ended with their worker, as far as known."""
        found = self._found
        return found.lost if found is not None and self._single and found.until == message.id else 0

    def attempt(self, message: Message) -> int:
        """Returns the number of the next attempt, or of the last one if the message is given up."""
        lost = self.lost(message)
        given_up = self._found is not None and self._found.last and 0 < self._attempts <= lost
        return lost if given_up else lost + 1

    def last(self, message: Message) -> bool:
        """Returns True if the worker may handle nothing else beside this message."""
        return self.suspected(message) and 0 < self._attempts <= self._lost_before(message) + 1

    def begin(self, messages: Sequence[Message]) -> HandlingNote:
        """Returns the note to record before these messages begin."""
        self._begun = messages
        return HandlingNote(messages[-1].id, self._lost_before(messages[0]) + 1, self.last(messages[0]))

    def handled(self, messages: int) -> None:
        self._left -= messages

    def ended(self) -> HandlingNote | None:
        """Returns the note to record when no message is being handled."""
        if self.over:
            return None
        if not self._begun or self.suspected(self._begun[0]):
            return self._found
        return HandlingNote(self._begun[-1].id, 0)

    def _lost_before(self, message: Message) -> int:
        """Returns the number of lost sessions, the one that caused the watch included."""
        return self._found.lost if self._found is not None and self.suspected(message) else 1


class HungAttempts:
    """Attempts that did not end, until their partition has messages here again.

    Attributes:
        notes: The attempts.
    """

    def __init__(self) -> None:
        self.notes: dict[Partition, HandlingNote] = {}

    def add(self, partition: Partition, attempt: HandlingNote) -> bool:
        """Adds an attempt; returns False if it was added before."""
        if self.notes.get(partition) == attempt:
            return False
        self.notes[partition] = attempt
        return True

    def take_over(self, partition: Partition, found: CommittedOffset) -> CommittedOffset:
        """Removes a partition's attempt and returns the offset as if that had been recorded beside it."""
        hung, noted = self.notes.pop(partition, None), found.note
        if hung is None or (noted is not None and noted.until == hung.until and noted.lost >= hung.lost):
            return found
        return msgspec.structs.replace(found, note=hung)
