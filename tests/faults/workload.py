"""Writers and readers over HTTP. Each is a thread that records every request and its answer."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from queuey.model import ids
from tests.faults.wire import Account, Answer, Line, NotSent, Unanswered, Web
from tests.harness.checking.records import ONLY_SENT, Outcome, Post, Read, Sent, Shown
from tests.harness.history import Journal, now

PARTITIONS = 4
PATIENCE = 40.0
"""Seconds that a client waits for an answer. Longer than any pause, so that late answers are received as well."""
HASTE = (0.3, 1.5)
"""The range of timeouts of hasty clients, in seconds. They never learn the outcome of some posts."""
STAY = 20
"""Pages for which a reader avoids a web process that did not answer."""
LONGEST_DELAY = 1.5
CATCH_UP_SECONDS = 60.0


class Style(NamedTuple):
    """How a writer writes.

    Attributes:
        sizes: Choices of the number of messages in a post. More than one are sent as a batch.
        delayed: Fraction of messages with a delay.
        chained: Each post sends the last acknowledged id of this writer as ``X-After``.
        hasty: Fraction of posts that are given up early.
        pace: Mean seconds between posts.
        partitions: Partitions of the queues to write to.
        once: Each partition gets one message in all, then the writer ends.
    """

    sizes: tuple[int, ...] = (1,)
    delayed: float = 0.0
    chained: bool = False
    hasty: float = 0.05
    pace: float = 0.03
    partitions: Sequence[int] = range(1, PARTITIONS + 1)
    once: bool = False


SINGLE = Style(delayed=0.05)
BATCHES = Style(sizes=(2, 5, 20), delayed=0.02, pace=0.06)
CHAIN = Style(sizes=(1, 1, 1, 3), chained=True, hasty=0.02, pace=0.02)


@dataclass(eq=False)
class Writer:
    """Posts until told to stop. It never repeats a post.

    Args:
        name: A unique name in the history. Bodies begin with it.
        webs: The web processes to ask, in turn.
        queues: The queues to post to, one at a time.
        style: How to write.
    """

    name: str
    webs: Sequence[Web]
    account: Account
    queues: Sequence[str]
    style: Style
    journal: Journal
    seed: int

    def __post_init__(self) -> None:
        self._lines = [Line(web, self.account) for web in self.webs]
        self._rng = random.Random(f"{self.seed} {self.name}")
        self._last: str | None = None
        self._number = 0
        self._unused = list(reversed(self.style.partitions))

    def post_until(self, stop: threading.Event) -> None:
        """Posts at random times until stopped, or until a partition to write to once is not left.

        Chained posts follow the last id.
        """
        lines = itertools.cycle(self._lines)
        while self._unused and not stop.wait(self._rng.expovariate(1 / self.style.pace)):
            try:
                post = self._post(next(lines), self._rng.choice(self.queues), self._draw_messages())
            except NotSent:
                stop.wait(0.1)
                continue
            if self.style.chained and post.ids:
                self._last = max(post.ids, key=ids.parse_position)
        self._close()

    def post_marks(self) -> dict[str, dict[int, str]]:
        """Posts to every partition of every queue until each has accepted one message. Returns their ids.

        Fails if a partition accepts none for :data:`CATCH_UP_SECONDS`.
        """
        marks: dict[str, dict[int, str]] = {}
        until = now() + CATCH_UP_SECONDS
        for queue, partition in itertools.product(self.queues, self.style.partitions):
            lines = itertools.cycle(self._lines)
            post = self._post(next(lines), queue, (Sent(self._make_body(0), partition),))
            while not post.ids and now() < until:
                threading.Event().wait(0.2)
                post = self._post(next(lines), queue, (Sent(self._make_body(0), partition),))
            assert post.ids, f"nothing is taken any more: {post}"
            marks.setdefault(queue, {})[partition] = post.ids[0]
        self._close()
        return marks

    def _close(self) -> None:
        for line in self._lines:
            line.close()

    def _make_body(self, n: int) -> str:
        return f"{self.name}.{self._number}.{n}"

    def _draw_messages(self) -> tuple[Sent, ...]:
        rng, style = self._rng, self.style
        return tuple(
            Sent(
                self._make_body(n),
                self._unused.pop() if style.once else rng.choice(style.partitions),
                round(rng.uniform(0.05, LONGEST_DELAY), 2) if rng.random() < style.delayed else 0.0,
            )
            for n in range(rng.choice(style.sizes))
        )

    def _post(self, line: Line, queue: str, sent: tuple[Sent, ...]) -> Post:
        """Sends one post, some with a short timeout, and records it. Raises NotSent if the connection was refused."""
        self._number += 1
        body, headers = _make_request(sent, self._last)
        timeout = self._rng.uniform(*HASTE) if self._rng.random() < self.style.hasty else PATIENCE
        start = now()
        try:
            answer = line.ask("POST", f"/{queue}", body=body, headers=headers, timeout=timeout)
        except Unanswered as error:
            answer = Answer(ONLY_SENT, retry_after=False, content={}, text=str(error))
        post = Post(
            start=start,
            end=now(),
            web=line.web.name,
            writer=self.name,
            queue=queue,
            sent=sent,
            status=answer.status,
            outcomes=_find_outcomes(answer, len(sent)),
            ids=tuple(one["key"] for one in answer.content["messages"]) if answer.status == 201 else (),
            after=self._last,
            retry_after=answer.retry_after,
            note="" if answer.status == 201 else answer.text,
        )
        self.journal.add(post)
        return post


def _make_request(sent: tuple[Sent, ...], after: str | None) -> tuple[bytes, dict[str, str]]:
    headers = {"X-After": after} if after else {}
    if len(sent) > 1:
        messages = [{"body": one.body, "partition": one.partition, "delay": one.delay} for one in sent]
        return json.dumps({"messages": messages}).encode(), {**headers, "Content-Type": "application/json"}
    (one,) = sent
    headers |= {"X-Partition": str(one.partition), "Content-Type": "text/plain"}
    if one.delay:
        headers["X-Delay"] = str(one.delay)
    return one.body.encode(), headers


def _find_outcomes(answer: Answer, size: int) -> tuple[Outcome, ...]:
    """Returns each message's outcome; without single outcomes the answer's own counts for all."""
    outcomes = answer.content.get("outcomes", [answer.content.get("outcome")] * size)
    return tuple(_find_outcome(answer, outcomes[n]) for n in range(size))


def _find_outcome(answer: Answer, told: object) -> Outcome:
    """Returns ``acknowledged`` for 201, ``none`` only if the answer says so, and else ``unknown``."""
    if answer.status == 201:
        return "acknowledged"
    return "none" if told == "none" else "unknown"


class Habit(NamedTuple):
    """How a reader reads.

    Attributes:
        partitions: The partitions of the queue, all in one request.
        merge: Reads one list in time order.
        limit: Max messages of a page.
        wait: Seconds of the long poll; 0: none.
        pause: Mean seconds of rest if there is nothing more to read.
        patience: Seconds after which the reader switches to another web process for a while.
        anew: Each page is read by a new reader, from the beginning.
    """

    partitions: tuple[int, ...] = tuple(range(1, PARTITIONS + 1))
    merge: bool = False
    limit: int = 300
    wait: int = 0
    pause: float = 0.15
    patience: float = 1.5
    anew: bool = False


FREQUENT = Habit(partitions=(1,), limit=100, pause=0.05)
"""Short pages of one partition. Services read only these on their event loops, and all others in threads."""


@dataclass(eq=False)
class Reader:
    """Follows a queue by the cursor of each answer, on varying web processes.

    Args:
        name: A unique name in the history.
        webs: The web processes to ask, at random.
        queue: The queue to follow.
        habit: How to read.
        final: As in :class:`tests.harness.checking.records.Read`.
    """

    name: str
    webs: Sequence[Web]
    account: Account
    queue: str
    habit: Habit
    journal: Journal
    final: int = 0

    def __post_init__(self) -> None:
        self._lines = [Line(web, self.account) for web in self.webs]
        self._rng = random.Random(self.name)
        self._cursor = ""
        self._line = self._lines[0]
        self._staying = 0
        self._pages = 0

    def read_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if not self._read_page(self.habit.wait):
                stop.wait(self._rng.expovariate(1 / self.habit.pause))
        self._close()

    def read_beyond(self, marks: dict[int, str]) -> None:
        """Reads on until the cursor is above these ids, one per partition, at most for :data:`CATCH_UP_SECONDS`."""
        until = now() + CATCH_UP_SECONDS
        while not self._is_beyond(marks) and now() < until:
            if not self._read_page(0):
                threading.Event().wait(0.1)
        self._close()

    def _close(self) -> None:
        for line in self._lines:
            line.close()

    def _is_beyond(self, marks: dict[int, str]) -> bool:
        """Returns whether all cursors are above the marks; False before the first page."""
        cursors = _parse_cursors(self._cursor)
        return bool(cursors) and all(
            ids.parse_position(cursor) > ids.parse_position(marks[number]) for number, cursor in cursors.items()
        )

    def _read_page(self, wait: int) -> bool:
        """Reads a page and records it. Returns whether there is more at once.

        Avoids a web process that does not answer; a read that was not sent is not recorded.
        """
        if self.habit.anew:
            self._cursor = ""
            self._pages += 1
        line = self._choose_line()
        start = now()
        try:
            answer = line.ask("GET", self._make_path(wait), timeout=wait + self.habit.patience)
        except NotSent:
            self._avoid(line)
            return False
        except Unanswered as error:
            self._avoid(line)
            answer = Answer(ONLY_SENT, retry_after=False, content={}, text=str(error))
        self.journal.add(self._make_record(line.web, start, answer))
        if answer.status != 200:
            return False
        self._cursor = answer.content["cursor"]
        return bool(answer.content["more"])

    def _choose_line(self) -> Line:
        """Returns a random connection for the next page; the same one for :data:`STAY` pages after a switch."""
        self._staying -= 1
        if self._staying < 0:
            self._line = self._rng.choice(self._lines)
        return self._line

    def _avoid(self, line: Line) -> None:
        """Switches to another web process for the next :data:`STAY` pages."""
        self._line = self._rng.choice([other for other in self._lines if other is not line] or self._lines)
        self._staying = STAY

    def _make_path(self, wait: int) -> str:
        habit = self.habit
        path = f"/{self.queue}?partitions={','.join(map(str, habit.partitions))}&limit={habit.limit}"
        path += f"&since={self._cursor}" if self._cursor else ""
        return path + ("&merge=true" if habit.merge else "") + (f"&wait={wait}" if wait else "")

    def _make_record(self, web: Web, start: float, answer: Answer) -> Read:
        """Returns the record of a page. A refused read has no messages and no cursors."""
        good = answer.status == 200
        content = answer.content
        return Read(
            start=start,
            end=now(),
            web=web.name,
            reader=f"{self.name}-{self._pages}" if self.habit.anew else self.name,
            queue=self.queue,
            partitions=self.habit.partitions,
            status=answer.status,
            since=_parse_cursors(self._cursor),
            merge=self.habit.merge,
            horizon=content["horizon"] if good else "",
            shown=tuple(Shown(one["partition"], one["message_id"], one["body"]) for one in content["messages"])
            if good
            else (),
            next={int(number): name for number, name in content["next"].items()} if good else {},
            retry_after=answer.retry_after,
            final=self.final,
            note="" if good else answer.text,
        )


def _parse_cursors(text: str) -> dict[int, str]:
    """Parses a cursor such as ``1:<id>,2:<id>``."""
    return {int(number): name for number, _, name in (part.partition(":") for part in text.split(",") if part)}
