"""Finds messages that crash their worker, and gives them up.

A message that crashes its worker, or blocks it until its session expires, leaves no error. It must not end every worker
in turn. So the record of the offset shows whether the previous owner released the partition. This costs nothing while
no session is lost::

    ordinary ──lost──► watched ──lost with a run──► suspected ──lost, and again──► last attempt ──lost──► given up
        ▲                │  ▲                           │                              │
        └─enough handled─┘  └───────────ended───────────┴──────────────────────────────┘

ordinary      Only offsets are recorded.
watched       A write before each run records the offset, the last message of the run, and the number of lost sessions
              if this session is lost, too. Runs are not shortened. The watch ends after as many messages as could have
              been in flight.
suspected     The messages of a lost run are handled one by one, in parallel with other partitions. Now the note names a
              single message, and another loss counts as an attempt at this message, in addition to the earlier ones.
last attempt  The worker handles no other message, and the note records this. The end of the attempt is recorded before
              another message starts.

Several partitions of a worker may have suspected messages, but only one of them crashes it. So a message is given up
only if the worker is lost while it handles no other message. An owner that releases the partition records the note
without its own attempt. So a hand-over costs no attempt and does not end the watch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from qdo.group.records import CommittedOffset, HandlingNote
from qdo.partitions import Partition
from queuey.client import Message, order_of


class CrashSuspicion:
    """Decides how to handle the messages of one partition while one worker owns it. Does no I/O.

    Args:
        committed: The recorded offset when the worker acquired the partition.
        first: The first message after that offset.
        watch: Number of messages to watch.
        attempts: Max attempts at a message; 0 for no limit.
    """

    def __init__(self, committed: CommittedOffset, first: Message, watch: int, attempts: int) -> None:
        self._earlier_note = committed.note
        self._single = committed.note is not None and (committed.note.last or committed.note.until == first.id)
        self._remaining = watch if committed.held or committed.note is not None else 0
        self._attempts = attempts
        self._begun: Sequence[Message] = ()

    @property
    def is_over(self) -> bool:
        return self._remaining <= 0

    def is_suspected(self, message: Message) -> bool:
        """Returns whether a message may have been in flight when a session that recorded it was lost.

        False if the messages were handed back.
        """
        note = self._earlier_note
        return note is not None and note.lost > 0 and order_of(message.id) <= order_of(note.until)

    def count_lost_attempts(self, message: Message) -> int:
        """Returns the lost sessions that count as attempts at a message: 0 unless the note names it alone."""
        note = self._earlier_note
        return note.lost if note is not None and self._single and note.until == message.id else 0

    def attempt_number(self, message: Message) -> int:
        """Returns the number of the next attempt, or of the last one if the message is given up.

        That is lost attempts + 1, or lost attempts if the last ran alone and the limit is reached.
        """
        lost = self.count_lost_attempts(message)
        given_up = self._earlier_note is not None and self._earlier_note.last and 0 < self._attempts <= lost
        return lost if given_up else lost + 1

    def must_run_alone(self, message: Message) -> bool:
        """Returns whether a suspected message is at its last attempt; never without a limit of attempts."""
        return self.is_suspected(message) and 0 < self._attempts <= self._lost_before(message) + 1

    def begin_run(self, messages: Sequence[Message]) -> HandlingNote:
        """Notes messages as begun; returns the note to record before they run, which counts this session as lost."""
        self._begun = messages
        return HandlingNote(messages[-1].id, self._lost_before(messages[0]) + 1, self.must_run_alone(messages[0]))

    def record_handled(self, messages: int) -> None:
        """Counts handled messages. The watch is over after ``watch`` of them."""
        self._remaining -= messages

    def make_final_note(self) -> HandlingNote | None:
        """Returns the note to record after a run, or None if the watch is over.

        It is the earlier owner's note until its messages are handled, then one that counts no lost session.
        """
        if self.is_over:
            return None
        if not self._begun or self.is_suspected(self._begun[0]):
            return self._earlier_note
        return HandlingNote(self._begun[-1].id, 0)

    def _lost_before(self, message: Message) -> int:
        return self._earlier_note.lost if self._earlier_note is not None and self.is_suspected(message) else 1


class HungAttempts:
    """Attempts that did not end, kept until this worker gets messages of their partition again.

    :meth:`add` returns False for an attempt that was added before.

    Attributes:
        notes: The attempt of each partition.
    """

    def __init__(self) -> None:
        self.notes: dict[Partition, HandlingNote] = {}

    def add(self, partition: Partition, attempt: HandlingNote) -> bool:
        if self.notes.get(partition) == attempt:
            return False
        self.notes[partition] = attempt
        return True

    def take_over(self, partition: Partition, committed: CommittedOffset) -> CommittedOffset:
        """Removes the attempt of a partition and returns the offset as if the attempt had been recorded with it.

        Leaves the offset as it is if the message is done by now, or if the recorded note counts as many attempts at it.
        """
        hung, recorded = self.notes.pop(partition, None), committed.note
        if hung is None or (recorded is not None and recorded.until == hung.until and recorded.lost >= hung.lost):
            return committed
        if committed.id is not None and order_of(hung.until) <= order_of(committed.id):
            return committed  # another worker went on, and the recorded note is of a later message
        return msgspec.structs.replace(committed, note=hung)
