"""How many claims a queue has, known well enough to stop handing out messages at a limit."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from queuey.service import ClaimUseCases, QueueAccess

MAX_CLAIMED = 20_000
"""Max live claims of a queue; polls of a full queue return nothing."""
REMEMBERED = 4096


class OpenClaims:
    """Bounds the claims of queues.

    A queue's claims are counted at its first poll in this process, and again whenever they may have reached the limit:
    those that were made here since are added, and none is taken off. So the limit is exact for a queue that is polled
    through one process, and each further process may go beyond it by what the others have claimed since its count.

    Args:
        claims: Counts.
        most: Claims at which a queue is full.
        remembered: Queues whose numbers are kept.
    """

    def __init__(self, claims: ClaimUseCases, *, most: int = MAX_CLAIMED, remembered: int = REMEMBERED) -> None:
        self._claims = claims
        self._most = most
        self._remembered = remembered
        self._lock = Lock()
        self._known: OrderedDict[int, int] = OrderedDict()

    def has_room(self, qid: int) -> bool:
        """Returns whether it is known that a queue may have more claims. Never blocks."""
        return self._known.get(qid, self._most) < self._most

    def is_full(self, access: QueueAccess) -> bool:
        qid = access.queue.qid
        if not self.has_room(qid):
            self._note(qid, count_claims(self._claims, access))
        return not self.has_room(qid)

    def add(self, qid: int, made: int) -> None:
        if made:
            self._note(qid, self._known.get(qid, 0) + made)

    def _note(self, qid: int, number: int) -> None:
        with self._lock:
            self._known[qid] = number
            self._known.move_to_end(qid)
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)


def count_claims(claims: ClaimUseCases, access: QueueAccess) -> int:
    return claims.counts(access).claimed
