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
from tests.faults.groups.checking import GROUPS, GroupHistory, Place, count
from tests.faults.groups.member import Member
from tests.faults.webs import Store, Webs
from tests.faults.wire import Account, Line, NotSent, Unanswered, Web, make_queue
from tests.faults.workload import PATIENCE, Style, Writer
from tests.harness.checking.history import History
from tests.harness.checking.records import Record
from tests.harness.checking.rules import check, checked
from tests.harness.history import Journal, Records, now, running
from tests.harness.nemesis import Wave, perform
from tests.harness.plans import Plan
from tests.harness.results import Result
from tests.waiting import until

GROUP = "crew"
QUEUES = {"crew-a": 4, "crew-b": 3}
"""By name, with the number of partitions."""
POSTERS, MEMBERS = 2, 5
POSTED = Style(sizes=(1, 1, 3), pace=0.2, partitions=range(1, 4))
DRAIN_SECONDS = 120.0
"""A failure waits so long until everything is handled and committed."""
CALM_SECONDS = 3.0
"""Without faults, before and after them."""
OBSERVED_EVERY = 0.3


class GroupRun:
    """Web processes, named ``web-1`` and so on, and everybody who talks to them.

    Args:
        directory: For data, logs and the history of posts.
        store: What they run on.
        webs: How many services.
        workers: How many processes each of them has.
        session: Seconds of members' sessions.
        orderly: Members never stand still, and always leave in the end.
        written: Schedules of faults by name.
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
        self._store = store
        self._workers = workers
        self._session = session
        self._orderly = orderly
        self._written = written
        self._journal = Journal(directory / "history.jsonl")
        self._records = Records(directory, Record)
        self._processes = Webs(directory, store, webs, workers)
        self._history = GroupHistory()
        self._lock = threading.Lock()
        self._calm = threading.Event()

    def run(self, plan: Plan, *, rest: float) -> Result:
        """Runs, with all faults in the middle, then has everything handled and committed, and judges.

        Args:
            plan: Its faults, and the seed of what clients do.
            rest: Seconds between waves of faults.
        """
        waves = self._processes.waves(plan, self._written, rest)
        with self._processes.serving():
            webs, account = self._processes.addresses, self._processes.account
            for name, partitions in QUEUES.items():
                make_queue(webs[0], account, queue_name=name, partitions=partitions)
            members = [self._member(number, plan.seed) for number in range(MEMBERS)]
            with running([*(member.run for member in members), self._observe]):
                with running([self._poster(number, plan.seed).run for number in range(POSTERS)]):
                    threading.Event().wait(CALM_SECONDS)
                    perform(waves, self._processes.hit, self._journal.add, rest=rest)
                    self._store.settled()
                    threading.Event().wait(CALM_SECONDS)
                self._calm.set()
                calm = now()
                self._read_all(webs, account)
                until(lambda: self._is_drained(webs, account), DRAIN_SECONDS, every=0.3)
                settled = now() - calm
            self._is_drained(webs, account)
        return self._judge(settled)

    def _member(self, number: int, seed: int) -> Member:
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

    def _poster(self, number: int, seed: int) -> Writer:
        webs, account = self._processes.addresses, self._processes.account
        return Writer(f"poster-{number}", webs, account, list(QUEUES), POSTED, self._journal, seed)

    def _observe(self, stop: threading.Event) -> None:
        """Is the thread of somebody who looks at the offsets; one web process after another is asked."""
        lines = [Line(web, self._processes.account) for web in self._processes.addresses]
        while not stop.wait(OBSERVED_EVERY):
            for place, position in _offsets(random.choice(lines), 2.0).items():
                if position is not None:
                    self._history.observed[place].append(position)
        for line in lines:
            line.close()

    def _is_drained(self, webs: Sequence[Web], account: Account) -> bool:
        """Looks at the offsets, and returns whether everything is committed."""
        with closing(Line(webs[0], account)) as line:
            recorded = _offsets(line, PATIENCE)
        self._history.recorded = recorded
        places = self._history.messages
        return all(recorded.get(place) == found[-1] for place, found in places.items() if found)

    def _read_all(self, webs: Sequence[Web], account: Account) -> None:
        """Reads what there is, when nothing vanishes or appears any more."""
        threading.Event().wait(2 * self._store.span.delay)
        self._store.converged()
        line = Line(webs[0], account)
        for queue, partitions in QUEUES.items():
            for number in range(1, partitions + 1):
                self._history.messages[queue, number] = _read(line, queue, number)
        line.close()

    def _judge(self, settled: float) -> Result:
        posts = History(self._records.all())
        acknowledged: dict[Place, set[Position]] = defaultdict(set)
        for place in posts.acknowledged:
            acknowledged[place.queue, place.partition].add(ids.parse_position(place.id))
        self._history.acknowledged = acknowledged
        counts = count(self._history) | {"settled_ms": round(1000 * settled), "faults": len(posts.faults)}
        counts |= self._processes.request_counts
        violations, applied = check(self._history, GROUPS), checked(counts, GROUPS)
        return Result(violations, counts, applied, posts.faults, self._processes.output[-6000:], self._history)


def _offsets(line: Line, timeout: float) -> dict[Place, Position | None]:
    """Returns the recorded offsets, as far as they are told."""
    found: dict[Place, Position | None] = {}
    for queue in QUEUES:
        try:
            answer = line.ask("GET", f"/{queue}/offsets/{GROUP}", timeout=timeout)
        except (NotSent, Unanswered):
            continue
        if answer.status == 200:
            for number, each in answer.content["partitions"].items():
                offset = each["offset"]
                found[queue, int(number)] = None if offset is None else ids.parse_position(offset)
    return found


def _read(line: Line, queue: str, number: int) -> list[Position]:
    """Reads a partition from its beginning."""
    found: list[Position] = []
    since = ""
    while True:
        answer = line.ask("GET", f"/{queue}?partitions={number}&limit=500{since}", timeout=PATIENCE)
        assert answer.status == 200, answer
        found += [ids.parse_position(each["message_id"]) for each in answer.content["messages"]]
        if not answer.content["more"]:
            return found
        since = f"&since={answer.content['cursor']}"
