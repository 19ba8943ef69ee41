"""A member over HTTP, which joins, reads, commits and leaves as ``docs/architecture-groups.md`` requires."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from queuey import ids
from queuey.ids import Position
from tests.faults.groups.checking import Commit, End, GroupHistory, Place, Stay
from tests.faults.wire import Account, Answer, Line, NotSent, Unanswered, Web
from tests.harness.history import now

TIMEOUT = 1.2
"""Seconds to wait for an answer, on top of the request's own wait. Then another web process is asked."""
PAGE = 10
STANDSTILLS = 0.02
"""Probability that a member stands still after a page."""
LATE_COMMITS = 0.4
"""Fraction of partitions for which it commits after it has given them back."""
UNSUPPORTED_STATUSES = frozenset({400, 404, 405})
"""Statuses of a web process that does not support groups."""


class Ended(Exception):
    """This life of the member is over."""


@dataclass(eq=False)
class Member:
    """One member with a connection to each web process. It sends each request to one of them.

    Args:
        name: Its name in the history.
        webs: The web processes.
        account: The account of the requests.
        group: Its group.
        queues: The queues that it joins for.
        history: The records, shared by several members.
        lock: Guards the history.
        calm: Returns whether the faults are over. Then it lives on and commits everything.
        rng: Decides what it does.
        session: Seconds of its sessions.
        instance: The instance name of a static member.
        orderly: It never stands still, and always leaves in the end.
    """

    name: str
    webs: Sequence[Web]
    account: Account
    group: str
    queues: Sequence[str]
    history: GroupHistory
    lock: threading.Lock
    calm: Callable[[], bool]
    rng: random.Random
    session: float = 4.0
    instance: str = ""
    orderly: bool = False

    def __post_init__(self) -> None:
        self._lines = [Line(web, self.account) for web in self.webs]
        self._lives = 0
        self._id = ""
        self._session_end = 0.0
        self._max_wait = 0.0
        self._stays: dict[Place, Stay] = {}
        self._cursors: dict[Place, Position | None] = {}
        self._committed: dict[Place, tuple[int, Position]] = {}

    def run(self, stop: threading.Event) -> None:
        """Lives one life after another until stopped. It leaves the group only if it then holds partitions."""
        while not stop.is_set():
            try:
                self._live(stop)
            except Ended:
                stop.wait(self.rng.uniform(0.0, 0.5))
        if self._stays:
            self._leave()
        for line in self._lines:
            line.close()

    def _live(self, stop: threading.Event) -> None:
        """Joins, sends heartbeats and works until the life ends. Partitions to give back come before work.

        Between pages it sometimes stands still or commits nothing, unless the faults are over.
        """
        self._join(stop)
        ends = now() + (1e9 if self.calm() else self.rng.uniform(3.0, 15.0))
        while not stop.is_set():
            if now() > ends and not self.calm():
                self._end_life(stop)
                return
            answer = self._send_heartbeat()
            if asked := _parse_epochs(answer["give_back"]):
                # One heartbeat gives the partitions back; the next one asks for new ones.
                self._give_back(asked)
                continue
            for stay in list(self._stays.values()):
                self._work(stay)
                if not self.calm() and not self.orderly and self.rng.random() < STANDSTILLS:
                    stop.wait(self.session * self.rng.uniform(0.3, 2.0))
                if self.calm() or self.rng.random() < 0.7:
                    self._commit(stay)

    def _end_life(self, stop: threading.Event) -> None:
        """Leaves, crashes, or outlives its session and then commits late; an orderly member always leaves."""
        mood = 0.0 if self.orderly else self.rng.random()
        if mood < 0.3:
            self._leave()
        elif mood < 0.6:
            self._end_all_stays("killed")
        else:
            for stay in list(self._stays.values()):
                self._work(stay)
            stays = list(self._stays.values())
            stop.wait(self.session * self.rng.uniform(0.8, 2.5))
            for stay in stays:
                self._commit(stay)
            self._check_session()
            self._end_all_stays("killed")

    # Requests

    def _send(self, method: str, path: str, body: object = None, *, wait: float = 0.0) -> tuple[float, Answer | None]:
        """Sends a request to any web process that listens. Returns when it was sent, and the answer or None."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/problem+json"}
        for line in self.rng.sample(self._lines, len(self._lines)):
            asked = now()
            with self.lock:
                self.history.calls += 1
            try:
                return asked, line.ask(method, path, body=data, headers=headers, timeout=wait + TIMEOUT)
            except NotSent:
                continue
            except Unanswered:
                return asked, None
        return now(), None

    def _join(self, stop: threading.Event) -> None:
        """Joins, with retries. Raises Ended if stopped before."""
        body = {"queues": list(self.queues), "session": self.session, "revoke": 2 * self.session}
        body |= {"instance": self.instance, "grace": 2 * self.session} if self.instance else {}
        while True:
            asked, answer = self._send("POST", f"/_groups/{self.group}/members", body)
            if answer is not None and answer.status == 201:
                break
            assert answer is None or answer.status in {400, 404, 405, 409, 429, 503}, answer
            if stop.wait(0.3):
                raise Ended
        self._lives += 1
        with self.lock:
            self.history.lives += 1
        self._id = answer.content["member"]
        self._session_end = asked + answer.content["session"]
        self._max_wait = answer.content["wait"]

    def _send_heartbeat(self, given_back: Sequence[Stay] = ()) -> dict[str, Any]:
        """Sends heartbeats until one is answered, and applies the answer: partitions lost and taken.

        Raises Ended if the session is over, or gone, or ends before the answer came.
        """
        while True:
            self._check_session()
            wait = 0.0 if given_back else self.rng.choice((0.0, 0.2, min(1.0, self._max_wait)))
            owned, returned = self._epochs_of(self._stays.values()), self._epochs_of(given_back)
            body = {"owned": owned, "given_back": returned, "wait": wait}
            asked, answer = self._send("POST", f"/_groups/{self.group}/members/{self._id}", body, wait=wait)
            if answer is not None and answer.status == 200:
                break
            if answer is not None and answer.content.get("code") == "MemberGone":
                self._end_all_stays("gone")
                raise Ended
            assert answer is None or answer.status in {503, *UNSUPPORTED_STATUSES}, answer
            threading.Event().wait(0.1)
        # An answer after the end of the session does not count.
        self._check_session()
        content = answer.content
        self._session_end, self._max_wait = max(self._session_end, asked + content["session"]), content["wait"]
        for queue, numbers in content.get("lost", {}).items():
            for number in numbers:
                self._end_stay((queue, int(number)), "lost")
        for queue, taken in content.get("take", {}).items():
            for number, each in taken.items():
                self._begin_stay((queue, int(number)), each)
        return content

    def _epochs_of(self, stays: Any) -> dict[str, dict[str, int]]:  # noqa: ANN401 - any iterable of stays
        epochs: dict[str, dict[str, int]] = {}
        for stay in stays:
            queue, number = stay.place
            epochs.setdefault(queue, {})[str(number)] = stay.epoch
        return epochs

    def _check_session(self) -> None:
        """Drops all partitions and raises Ended if the session is over."""
        if now() >= self._session_end:
            self._end_all_stays("over")
            raise Ended

    # Partitions

    def _begin_stay(self, place: Place, taken: dict[str, Any]) -> None:
        """Records a stay on an assigned partition; an earlier stay on it counts as lost."""
        offset = None if taken["offset"] is None else ids.parse_position(taken["offset"])
        life = f"{self.name}.{self._lives}"
        self._end_stay(place, "lost")
        stay = Stay(place, life, self.instance, taken["epoch"], offset, taken["from"], now())
        self._stays[place], self._cursors[place] = stay, offset
        with self.lock:
            self.history.stays.append(stay)

    def _end_stay(self, place: Place, how: End) -> None:
        """Ends a stay now, or at the end of the session if that was earlier."""
        if stay := self._stays.pop(place, None):
            stay.end, stay.how = min(now(), self._session_end), how

    def _end_all_stays(self, how: End) -> None:
        for place in list(self._stays):
            self._end_stay(place, how)

    def _give_back(self, asked: dict[Place, int]) -> None:
        """Commits and stops work, then reports it by a heartbeat. Some commits come after that, on purpose."""
        stays = [stay for place, epoch in asked.items() if (stay := self._stays.get(place)) and stay.epoch == epoch]
        late = [stay for stay in stays if not self.orderly and not self.calm() and self.rng.random() < LATE_COMMITS]
        for stay in stays:
            if stay not in late:
                self._commit(stay)
            self._end_stay(stay.place, "given back")
        # Partitions that it was asked for and does not have are given back as well.
        others = [
            Stay(place, "", "", epoch, None, "", 0.0) for place, epoch in asked.items() if place not in self._stays
        ]
        self._send_heartbeat(others)
        for stay in stays:
            stay.released = now()
        for stay in late:
            self._commit(stay, repeated=True)

    def _leave(self) -> None:
        """Commits everything and leaves, repeating the request until it is answered or the session is over.

        A static member sometimes says that it returns.
        """
        for stay in list(self._stays.values()):
            self._commit(stay)
        self._end_all_stays("left")
        returns = "?return=true" if self.instance and self.rng.random() < 0.5 else ""
        while now() < self._session_end:
            _, answer = self._send("DELETE", f"/_groups/{self.group}/members/{self._id}{returns}")
            if answer is not None and (answer.status < 300 or answer.content.get("code") == "MemberGone"):
                return
            threading.Event().wait(0.1)

    def _work(self, stay: Stay) -> None:
        """Handles one page of a stay, and stops early when the session or the stay has ended."""
        queue, number = stay.place
        cursor = self._cursors.get(stay.place)
        since = "" if cursor is None else f"&since={number}:{ids.to_hex(ids.following(cursor))}"
        _, answer = self._send("GET", f"/{queue}?partitions={number}&limit={PAGE}{since}")
        for message in answer.content["messages"] if answer is not None and answer.status == 200 else ():
            if now() >= self._session_end or self._stays.get(stay.place) is not stay:
                return
            position = ids.parse_position(message["message_id"])
            stay.handled.append((now(), position))
            self._cursors[stay.place] = position

    def _commit(self, stay: Stay, *, repeated: bool = False) -> None:
        """Commits the handled messages, even if it may be too late, and records the outcome.

        A commit that was accepted is sent again only if ``repeated``.
        """
        if not stay.handled:
            return
        cursor = stay.handled[-1][1]
        if self._committed.get(stay.place) == (stay.epoch, cursor) and not repeated:
            return
        queue, number = stay.place
        commit = Commit(stay.place, stay.life, stay.epoch, cursor, now())
        with self.lock:
            self.history.commits.append(commit)
        partition_commit = {"epoch": stay.epoch, "offset": ids.to_hex(cursor)}
        body = {"member": self._id, "commits": {str(number): partition_commit}}
        _, answer = self._send("PUT", f"/{queue}/offsets/{self.group}", body)
        commit.answered = now()
        if answer is None:
            return
        if answer.status == 200:
            commit.outcome = "done"
            self._committed[stay.place] = stay.epoch, cursor
        elif answer.content.get("code") in {"NotOwner", "MemberGone"} or answer.status in UNSUPPORTED_STATUSES:
            commit.outcome = "refused"
        else:
            assert answer.status == 503, answer


def _parse_epochs(partitions: dict[str, dict[str, Any]]) -> dict[Place, int]:
    return {
        (queue, int(number)): stay["epoch"] for queue, stays in partitions.items() for number, stay in stays.items()
    }
