"""Activity of queues in the last hour: ring buffers in the memory of each process, merged on demand.

A process counts messages of at most :data:`MAX_QUEUES` queues. Beyond that, the application with the most rings loses
its least recently used ones. Nothing is stored.
"""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from queuey.model.messages import Queue
from queuey.model.rights import matches
from queuey.runtime.due_work import order_in_turns
from queuey.runtime.workers import Topic, Workers

CELL_SECONDS, CELLS_PER_RING = 10, 360
"""Seconds per cell, and cells per ring."""
MAX_QUEUES = 1000
"""Max queues of a process; each takes about 9 kB."""
MAX_SAMPLED = 100
"""Max queues whose depth is sampled in one round: the most recently used ones."""
MAX_ACTIVE_QUEUES, RECENT_CELLS = 100, 60
"""Max queues in an answer about an application, and cells of each queue (ten minutes)."""
ANSWER_TIMEOUT = 1.0
"""Timeout in seconds for the answers of all other processes."""
UNKNOWN_DEPTH = -1


class Cells(msgspec.Struct, frozen=True, array_like=True):
    """A copy of a ring, the oldest cell first.

    Attributes:
        last: Number of the newest cell: seconds since 1970, divided by :data:`CELL_SECONDS`.
        sent: Stored messages, by cell.
        taken: Messages that were delivered to readers and claims, by cell.
        depth: Messages in the queue, by cell; -1 if not counted.
    """

    last: int
    sent: Sequence[int]
    taken: Sequence[int]
    depth: Sequence[int]


class ActivityQuery(msgspec.Struct, frozen=True, array_like=True):
    """Selects queues of an application that were used in the last hour.

    Attributes:
        patterns: Patterns of the queues' names, as for :func:`queuey.model.rights.matches`.
        uids: The queues; if empty, the most recently used ones.
    """

    application: str
    patterns: Sequence[str] = ("*",)
    uids: Sequence[int] = ()


class Activity(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a queue in the last minutes.

    Attributes:
        used: Number of the last cell in which messages were counted.
        cells: The newest :data:`RECENT_CELLS` cells.
    """

    uid: int
    name: str
    used: int
    cells: Cells


HISTORY_TOPIC = Topic(20, int, Cells)
"""The question is the ``uid`` of a queue."""
ACTIVITY_TOPIC = Topic(22, ActivityQuery, list[Activity])
_NO_CELLS = Cells(0, (), (), ())


class Ring:
    """The cells of one queue.

    Attributes:
        last: Number of the newest cell.
        used: Number of the last cell in which messages were counted; 0 before the first message.
    """

    __slots__ = ("application", "depth", "last", "name", "sent", "taken", "used")

    def __init__(self, application: str, name: str, last: int) -> None:
        self.application, self.name, self.last = application, name, last
        self.sent, self.taken = array("q", bytes(8 * CELLS_PER_RING)), array("q", bytes(8 * CELLS_PER_RING))
        self.depth = array("q", [UNKNOWN_DEPTH] * CELLS_PER_RING)
        self.used = 0

    def advance_to(self, last: int) -> int:
        """Makes a cell the newest one, unless a newer one exists, and clears the cells since the previous one.

        Returns the index of the newest cell.
        """
        for number in range(max(self.last + 1, last - CELLS_PER_RING + 1), last + 1):
            self.sent[number % CELLS_PER_RING] = self.taken[number % CELLS_PER_RING] = 0
            self.depth[number % CELLS_PER_RING] = UNKNOWN_DEPTH
        self.last = max(self.last, last)
        return self.last % CELLS_PER_RING

    def copy_cells(self, last: int, count: int = CELLS_PER_RING) -> Cells:
        begin = self.advance_to(last) + 1
        rings = (self.sent, self.taken, self.depth)
        return Cells(self.last, *([*ring[begin:], *ring[:begin]][-count:] for ring in rings))


def merge(processes: Sequence[Cells], count: int = CELLS_PER_RING) -> Cells:
    last = max((cells.last for cells in processes), default=0)
    sent, taken, depth = [0] * count, [0] * count, [UNKNOWN_DEPTH] * count
    for cells in processes:
        behind = last - cells.last
        for index in range(max(0, count - behind) if cells.sent else 0):
            sent[index] += cells.sent[index + behind]
            taken[index] += cells.taken[index + behind]
            depth[index] = max(depth[index], cells.depth[index + behind])
    return Cells(last, sent, taken, depth)


class History:
    """The rings of this process. Thread-safe."""

    def __init__(self, workers: Workers, clock: Callable[[], float] = time.time) -> None:
        self._workers = workers
        self.clock = clock
        self._lock = threading.Lock()
        self._rings: dict[int, Ring] = {}
        workers.handle(HISTORY_TOPIC, lambda uid, answer: answer(self.read_own(uid)))
        workers.handle(ACTIVITY_TOPIC, lambda query, answer: answer(self.read_own_activity(query)))

    def record(self, queue: Queue, sent: int, taken: int) -> None:
        """Counts messages of a queue in the present cell. Without messages it does nothing.

        A queue without a ring gets one, for which rings of other queues may be removed.
        """
        if not sent and not taken:
            return
        last = int(self.clock()) // CELL_SECONDS
        with self._lock:
            ring = self._rings.get(queue.uid)
            if ring is None:
                self._make_room(queue.application)
                ring = self._add_ring(queue, last)
            ring.used = last
            index = ring.advance_to(last)
            ring.sent[index] += sent
            ring.taken[index] += taken

    def record_depth(self, queue: Queue, count: int) -> None:
        last = int(self.clock()) // CELL_SECONDS
        with self._lock:
            ring = self._rings.get(queue.uid)
            if ring is None and len(self._rings) < MAX_QUEUES:
                ring = self._add_ring(queue, last)
            if ring is not None:
                ring.depth[ring.advance_to(last)] = count

    def recently_used(self) -> list[tuple[str, str]]:
        """Returns the applications and names of queues whose depth should be sampled.

        Applications take turns, each with its most recently used remaining queue.
        """
        with self._lock:
            rings = sorted(self._rings.values(), key=lambda ring: -ring.used)
        in_order = order_in_turns(rings, lambda ring: ring.application)
        return [(ring.application, ring.name) for ring in in_order[:MAX_SAMPLED]]

    def read_own(self, uid: int) -> Cells:
        with self._lock:
            ring = self._rings.get(uid)
            return _NO_CELLS if ring is None else ring.copy_cells(int(self.clock()) // CELL_SECONDS)

    async def read(self, queue: Queue) -> Cells:
        answers = (await self._workers.ask_all(HISTORY_TOPIC, queue.uid, ANSWER_TIMEOUT)).values()
        now = Cells(int(self.clock()) // CELL_SECONDS, (), (), ())
        return merge([now, self.read_own(queue.uid), *filter(None, answers)])

    def read_own_activity(self, query: ActivityQuery) -> list[Activity]:
        """Returns the activity of queues in this process, at most ``MAX_ACTIVE_QUEUES``, the last used first."""
        last, uids = int(self.clock()) // CELL_SECONDS, frozenset(query.uids)

        def is_selected(uid: int, ring: Ring) -> bool:
            if (
                ring.application != query.application
                or ring.used <= last - CELLS_PER_RING
                or (uids and uid not in uids)
            ):
                return False
            return any(matches(pattern, ring.name) for pattern in query.patterns)

        with self._lock:
            rings = [(uid, ring) for uid, ring in self._rings.items() if is_selected(uid, ring)]
            rings.sort(key=lambda pair: -pair[1].used)
            return [
                Activity(uid, ring.name, ring.used, ring.copy_cells(last, RECENT_CELLS))
                for uid, ring in rings[:MAX_ACTIVE_QUEUES]
            ]

    async def read_activity(self, query: ActivityQuery) -> list[Activity]:
        """Returns the merged activity of all processes of the service; waits up to ``ANSWER_TIMEOUT`` for the others.

        All cells end with the present one. Returns at most :data:`MAX_ACTIVE_QUEUES` queues.
        """
        answers = (await self._workers.ask_all(ACTIVITY_TOPIC, query, ANSWER_TIMEOUT)).values()
        now = Cells(int(self.clock()) // CELL_SECONDS, (), (), ())
        counted: dict[int, list[Activity]] = {}
        for activity in itertools.chain(self.read_own_activity(query), *filter(None, answers)):
            counted.setdefault(activity.uid, []).append(activity)
        activities = []
        for uid, of_queue in counted.items():
            cells = merge([now, *(activity.cells for activity in of_queue)], RECENT_CELLS)
            activities.append(Activity(uid, of_queue[0].name, max(activity.used for activity in of_queue), cells))
        return sorted(activities, key=lambda activity: -activity.used)[:MAX_ACTIVE_QUEUES]

    def _add_ring(self, queue: Queue, last: int) -> Ring:
        ring = self._rings[queue.uid] = Ring(queue.application, queue.name, last - CELLS_PER_RING)
        return ring

    def _make_room(self, application: str) -> None:
        if len(self._rings) < MAX_QUEUES:
            return
        counts = Counter(ring.application for ring in self._rings.values())
        counts[application] += 1
        largest = max(counts, key=counts.__getitem__)
        own = [uid for uid, ring in self._rings.items() if ring.application == largest]
        own.sort(key=lambda uid: self._rings[uid].used)
        for uid in own[: -(-len(own) // 4)]:
            del self._rings[uid]
