"""A run: web processes on one store, posters and members of a group, faults, a drain at the end, and the verdict."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from queuey import ids
from queuey.ids import Position
from tests.faults.groups.checking import GROUPS, GroupHistory, Place, count_events
from tests.faults.groups.member import Member
from tests.faults.posted_run import PostedRun
from tests.faults.webs import Store
from tests.faults.wire import Account, Line, NotSent, Unanswered, Web, make_queue
from tests.faults.workload import PATIENCE, Style
from tests.harness.history import now, running
from tests.harness.nemesis import Wave
from tests.harness.plans import Plan
from tests.harness.results import Result
from tests.waiting import until

GROUP = "crew"
QUEUES = {"crew-a": 4, "crew-b": 3}
"""Number of partitions by queue name."""
POSTERS, MEMBERS = 2, 5
POSTED = Style(sizes=(1, 1, 3), pace=0.2, partitions=range(1, 4))
DRAIN_SECONDS = 120.0
"""Max seconds until everything is handled and committed."""
CALM_SECONDS = 3.0
"""Seconds without faults, before and after them."""
OBSERVE_INTERVAL = 0.3


class GroupRun(PostedRun):
    """A run with members of a group. Further arguments are those of :class:`PostedRun`.

    Args:
        session: Seconds of members' sessions.
        orderly: Members never stand still, and always leave in the end.
    """

    def __init__(
        self,
        directory: Path,
        store: Store,
        *,
        webs: int,
        workers: int = 1,
        session: float = 4.0,
        orderly: bool = False,
        written: Mapping[str, Sequence[Wave]],
    ) -> None:
        super().__init__(directory, store, webs=webs, workers=workers, written=written)
        self._session = session
        self._orderly = orderly
        self._history = GroupHistory()

    def run(self, plan: Plan, *, rest: float) -> Result:
        """Runs, with all faults in the middle, then lets everything be handled and committed, and judges.

        Args:
            plan: The faults, and the seed of what clients do.
            rest: Seconds between waves of faults.
        """
        with self._processes.serving():
            webs, account = self._processes.addresses, self._processes.account
            for name, partitions in QUEUES.items():
                make_queue(webs[0], account, queue_name=name, partitions=partitions)
            members = [self._make_member(number, plan.seed) for number in range(MEMBERS)]
            with running([*(member.run for member in members), self._observe]):
                self._post(list(QUEUES), POSTED, POSTERS, plan, rest=rest, calm_seconds=CALM_SECONDS)
                self._calm.set()
                calm = now()
                self._read_all(webs, account)
                until(lambda: self._is_drained(webs, account), DRAIN_SECONDS, every=0.3)
                settled = now() - calm
            self._is_drained(webs, account)
        return self._judge(settled)

    def _make_member(self, number: int, seed: int) -> Member:
        return Member(
            f"member-{number}",
            self._processes.addresses * self._workers,
            self._processes.account,
            GROUP,
            list(QUEUES),
            self._history,
            self._lock,
            self._calm.is_set,
            random.Random(f"{seed} member-{number}"),
            self._session,
            "static" if number == 0 else "",
            orderly=self._orderly,
        )

    def _observe(self, stop: threading.Event) -> None:
        lines = [Line(web, self._processes.account) for web in self._processes.addresses]
        while not stop.wait(OBSERVE_INTERVAL):
            for place, position in _read_offsets(random.choice(lines), 2.0).items():
                if position is not None:
                    self._history.observed[place].append(position)
        for line in lines:
            line.close()

    def _is_drained(self, webs: Sequence[Web], account: Account) -> bool:
        """Reads and keeps the offsets; returns whether everything is committed."""
        with closing(Line(webs[0], account)) as line:
            recorded = _read_offsets(line, PATIENCE)
        self._history.recorded = recorded
        places = self._history.messages
        return all(recorded.get(place) == positions[-1] for place, positions in places.items() if positions)

    def _read_all(self, webs: Sequence[Web], account: Account) -> None:
        threading.Event().wait(2 * self._store.span.delay)
        self._store.converged()
        line = Line(webs[0], account)
        for queue, partitions in QUEUES.items():
            for number in range(1, partitions + 1):
                self._history.messages[queue, number] = _read_positions(line, queue, number)
        line.close()

    def _judge(self, settled: float) -> Result:
        posts = self._read_posts()
        acknowledged: dict[Place, set[Position]] = defaultdict(set)
        for place in posts.acknowledged:
            acknowledged[place.queue, place.partition].add(ids.parse_position(place.id))
        self._history.acknowledged = acknowledged
        counts = count_events(self._history) | {"settled_ms": round(1000 * settled), "faults": len(posts.faults)}
        return self._result(self._history, GROUPS, counts)


def _read_offsets(line: Line, timeout: float) -> dict[Place, Position | None]:
    """Returns the recorded offsets of the queues that answer."""
    positions: dict[Place, Position | None] = {}
    for queue in QUEUES:
        try:
            answer = line.ask("GET", f"/{queue}/offsets/{GROUP}", timeout=timeout)
        except (NotSent, Unanswered):
            continue
        if answer.status == 200:
            for number, each in answer.content["partitions"].items():
                offset = each["offset"]
                positions[queue, int(number)] = None if offset is None else ids.parse_position(offset)
    return positions


def _read_positions(line: Line, queue: str, number: int) -> list[Position]:
    positions: list[Position] = []
    since = ""
    while True:
        answer = line.ask("GET", f"/{queue}?partitions={number}&limit=500{since}", timeout=PATIENCE)
        assert answer.status == 200, answer
        positions += [ids.parse_position(each["message_id"]) for each in answer.content["messages"]]
        if not answer.content["more"]:
            return positions
        since = f"&since={answer.content['cursor']}"
