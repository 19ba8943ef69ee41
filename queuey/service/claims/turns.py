"""The partition with which claims of a queue begin: the same one for all of a moment, to share its entries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

AVOIDED = 1.0
"""Number of seconds for which a partition comes last where another process is at work."""
SHORTEST, LONGEST = 0.004, 0.1
"""Min and max seconds of a turn."""
ROUND = 1.0
"""Max seconds until every partition has its turn, unless there are so many that turns would be too short."""
QUEUES = 10_000
"""Max queues whose turns are remembered."""

Refused = Callable[[int], float]
"""Returns the boot time at which another process was last found at work on a partition."""


class _Turn:
    """The partitions of a queue in their present order."""

    __slots__ = ("began", "ends", "order")

    def __init__(self, partitions: int) -> None:
        self.order = list(range(1, partitions + 1))
        self.began = self.ends = -1e9


class PartitionRotation:
    """Gives each partition of a queue its turn. Any thread may call it.

    Claims that come while a partition has its turn begin there and gather, while an entry is appended, for the next
    one: so one append serves many of them, and the acknowledgements that follow. A turn ends when its time is over,
    when the partition had nothing to give, and when another process is found at work there.

    ``first`` (0 to 1) is the partition with which a process begins: another one each, so that processes drift apart.
    """

    def __init__(self, boottime: Callable[[], float], first: Callable[[], float]) -> None:
        self._boottime = boottime
        self._first = first
        self._lock = threading.Lock()
        self._turns: OrderedDict[int, _Turn] = OrderedDict()

    def order(self, qid: int, partitions: int, refused: Refused) -> Sequence[int]:
        """Returns the partitions of a queue in the order in which a claim asks them; it must not be changed."""
        now = self._boottime()
        with self._lock:
            turn = self._turns.get(qid)
            if turn is None or len(turn.order) != partitions:
                turn = self._begin(qid, partitions)
            self._turns.move_to_end(qid)
            if now >= turn.ends or refused(turn.order[0]) > turn.began:
                self._next(turn, now, refused)
            return turn.order

    def passed(self, qid: int, number: int) -> None:
        """Ends the turn of a partition that had nothing to give."""
        with self._lock:
            turn = self._turns.get(qid)
            if turn is not None and turn.order[0] == number:
                turn.ends = -1e9

    def _begin(self, qid: int, partitions: int) -> _Turn:
        turn = self._turns[qid] = _Turn(partitions)
        at = int(self._first() * partitions) % partitions
        turn.order = [*turn.order[at:], *turn.order[:at]]
        if len(self._turns) > QUEUES:
            self._turns.popitem(last=False)
        return turn

    def _next(self, turn: _Turn, now: float, refused: Refused) -> None:
        """Puts the next partition first at which no other process works; those passed over come last."""
        order = turn.order
        free = (at for at in range(1, len(order)) if refused(order[at]) <= now - AVOIDED)
        at = next(free, 1)
        turn.order = [*order[at:], *order[:at]]
        turn.began = now
        turn.ends = now + min(LONGEST, max(SHORTEST, ROUND / len(order)))
