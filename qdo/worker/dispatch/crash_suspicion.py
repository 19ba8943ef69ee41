"""Decides which messages of a partition may have caused the loss of its previous owner.

A message that crashes its worker, or holds it up until its session ends, leaves no error. To keep every worker in turn
from beginning it again, for ever, the offset's record says whether the previous owner released the partition, and after
a first loss also which messages were begun. This costs nothing while no session is lost.

::

    ordinary ──the owner is lost──► watched ──lost during a run────────► narrowed ──lost with it──► charged
        ▲                             │  ▲                                  │                          │
        └──enough was handled─────────┘  └──everything of the run is handled┴──handled, or given up────┘

ordinary    Nothing is noted.
watched     Each run is noted before it begins (which message is its last, how many sessions were lost). Runs are as
            long as ever and run concurrently. It ends after as many messages as could be in flight at the loss.
narrowed    The messages of the noted run are handled one by one, each noted as being alone, and of all that is narrowed
            or charged in one worker one message at a time. What is not suspected goes on beside it.
charged     One message was handled alone when the session was lost: each such loss is an attempt of it, together with
            those before. For its last attempt the worker handles nothing else at all. If that is lost, too, the
            message is not begun any more.

Each note is recorded together with the offset of all that is done before it. So messages near the faulty one are not
given up for it, and a message that was given up is not begun again when a later one crashes the next worker. The note
of a message that ran alone is removed as soon as the message has ended, and when a partition is handed back, the note
is restored as it was found: being handed over costs no attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from qdo.coordination import CommittedOffset, HandlingNote
from queuey.client import Message, order_of


class CrashSuspicion:
    """Of one partition, in the hands of one owner. Pure: it decides and does nothing.

    Args:
        found: What was recorded when the partition was taken.
        watch: So many messages are watched.
        attempts: So many a message may have; 0: without end.

    Attributes:
        noted: What was noted last.
    """

    def __init__(self, found: CommittedOffset, watch: int, attempts: int) -> None:
        known = found.note
        if known is not None and found.id is not None and order_of(known.until) <= order_of(found.id):
            known = None
        self._known = known
        self._left = watch if known is not None or found.held else 0
        self._attempts = attempts
        self.noted: HandlingNote | None = None

    @property
    def over(self) -> bool:
        """Whether nothing need be noted any more."""
        return self._known is None and self._left <= 0

    def narrowed(self, message: Message) -> bool:
        """Returns whether a message must run without other suspects; those behind the last one need not."""
        if self._known is not None and order_of(message.id) > order_of(self._known.until):
            self._known = None
        return self._known is not None

    def lost(self, message: Message) -> int:
        """Returns how many attempts of a message have ended with the session, as far as that is known."""
        known = self._known
        return known.lost + 1 if known is not None and known.alone and known.until == message.id else 0

    def guilty(self, message: Message) -> bool:
        """Returns whether a message is not to be begun any more, after so many attempts that were lost."""
        return self._known is not None and self._known.last and self.lost(message) >= self._attempts > 0

    def last(self, message: Message) -> bool:
        """Returns whether no other message may be handled at the same time as this one."""
        return self.narrowed(message) and self._lost_before(message) + 1 >= self._attempts > 0

    def note(self, messages: Sequence[Message]) -> HandlingNote:
        """Returns the note to record before some messages begin."""
        first = messages[0]
        self.noted = HandlingNote(messages[-1].id, self._lost_before(first), self.narrowed(first), self.last(first))
        return self.noted

    def _lost_before(self, message: Message) -> int:
        known = self._known if self.narrowed(message) else None
        return self.lost(message) or (1 if known is None or known.alone else known.lost + 1)

    def handled(self, messages: int) -> None:
        """So many more are done."""
        self._left -= messages

    def stale(self, end: str | None) -> bool:
        """Returns whether the note speaks of messages that are not all done, so that it is to be taken back."""
        return self.noted is not None and (end is None or order_of(end) < order_of(self.noted.until))

    def restored(self, end: str | None) -> HandlingNote | None:
        """Returns the note that takes its place when the partition is handed back: the one that was found."""
        known = self._known
        return known if known is None or end is None or order_of(end) < order_of(known.until) else None
