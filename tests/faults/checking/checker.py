"""Judges a recorded history: pure functions from records to violations.

The rules, by the names that violations carry:

* ``answers``: only the statuses that the API promises; an acknowledged post names an id for each message, no id twice;
  503 has Retry-After; no body is sent twice (the workload's own promise, on which the others stand).
* ``G1``: a reader whose cursor is above an acknowledged message was shown it.
* ``lost``: each full read at the end shows every acknowledged message, where it was acknowledged, with its body.
* ``G2``: what a 503 called ``none`` is never shown, by no read at any time.
* ``settled``: the full reads after the last faults' effects have ended agree.
* ``truth``: whatever is shown was sent, to that queue and partition, and stands at one place only.
* ``G3``: ids follow ``X-After``; ids of one web process ascend for whoever has seen an answer.
* ``page``: nothing at or above the horizon, in order, nothing below ``since``, nothing twice; cursors never go back.
* ``available``: no request takes longer than the bound; after faults, requests succeed again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from queuey import ids
from queuey.ids import Position
from tests.faults.checking.records import ONLY_SENT, History, Outcome, Post, Read, Sent, Shown
from tests.harness.history import Fault
from tests.harness.results import Violation

OK, CREATED, UNAVAILABLE = 200, 201, 503
SETTLED = 2
"""The first of the full reads that must agree with all later ones."""


class Place(NamedTuple):
    """Where a message lies."""

    queue: str
    partition: int
    id: str


class Fate(NamedTuple):
    """What became of a message as its writer was told. ``place`` has no id unless it was acknowledged."""

    place: Place
    outcome: Outcome
    post: Post
    sent: Sent


class Limits(NamedTuple):
    """What counts as available.

    Attributes:
        bound: Seconds that a request may take, as long as its web process is neither paused nor killed.
        grace: Seconds after the end of a fault in which requests may still fail.
        calm: Seconds without any fault, beyond the grace, in which requests must succeed.
    """

    bound: float = 25.0
    grace: float = 5.0
    calm: float = 2.0


def check(
    history: History,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    *,
    apart: bool = False,
) -> list[Violation]:
    """Applies all rules.

    Args:
        history: What happened.
        limits: What counts as available.
        apart: Each web process is of a data centre of its own: G1 and G2 hold for who writes and reads by the same.
    """
    fates = _fates(history)
    return [
        *_answers(history),
        *_truth(history, fates, apart=apart),
        *_chains(history, fates, apart=apart),
        *_final(history, fates),
        *_order(history),
        *available(history, limits),
    ]


@cache
def _position(text: str) -> Position:
    return ids.parse_position(text)


def _fates(history: History) -> dict[str, Fate]:
    found = {}
    for post in history.posts:
        names = post.ids if len(post.ids) == len(post.sent) else [""] * len(post.sent)
        for sent, outcome, name in zip(post.sent, post.outcomes, names, strict=False):
            found[sent.body] = Fate(Place(post.queue, sent.partition, name), outcome, post, sent)
    return found


def _acknowledged(fates: dict[str, Fate]) -> dict[Place, Fate]:
    return {fate.place: fate for fate in fates.values() if fate.outcome == "acknowledged" and fate.place.id}


# What the answers say


def _answers(history: History) -> Iterator[Violation]:
    bodies = Counter(sent.body for post in history.posts for sent in post.sent)
    for body, count in bodies.items():
        if count > 1:
            yield Violation("answers", f"{body} was sent {count} times")
    places: set[Place] = set()
    for post in history.posts:
        yield from _answer(post, CREATED)
        if len(post.outcomes) != len(post.sent):
            yield Violation("answers", f"{len(post.outcomes)} outcomes for {len(post.sent)} messages: {told(post)}")
        if set(post.outcomes) != {"acknowledged"} and "acknowledged" in post.outcomes:
            yield Violation("answers", f"acknowledged in part: {told(post)}")
        if len(post.ids) != len(post.sent) * ("acknowledged" in post.outcomes):
            yield Violation("answers", f"{len(post.ids)} ids for {len(post.sent)} messages: {told(post)}")
        for sent, name in zip(post.sent, post.ids, strict=False):
            place = Place(post.queue, sent.partition, name)
            if place in places:
                yield Violation("answers", f"{place} was given out twice: {told(post)}")
            places.add(place)
    for read in history.reads:
        yield from _answer(read, OK)


def _answer(event: Post | Read, good: int) -> Iterator[Violation]:
    if event.status not in {good, UNAVAILABLE, ONLY_SENT}:
        yield Violation("answers", f"status {event.status}: {told(event)}")
    if event.status == UNAVAILABLE and not event.retry_after:
        yield Violation("answers", f"503 without Retry-After: {told(event)}")
    if isinstance(event, Post) and (event.status == good) != ("acknowledged" in event.outcomes):
        yield Violation("answers", f"status {event.status} with outcomes {event.outcomes}: {told(event)}")


# What is shown


def _truth(history: History, fates: dict[str, Fate], *, apart: bool) -> Iterator[Violation]:
    places: dict[str, Place] = {}
    for read in history.reads:
        for shown in read.shown:
            place = Place(read.queue, shown.partition, shown.id)
            if places.setdefault(shown.body, place) != place:
                yield Violation("truth", f"{shown.body} is at {places[shown.body]} and at {place}: {told(read)}")
            yield from _shown(read, shown, place, fates.get(shown.body), apart=apart)


def _shown(read: Read, shown: Shown, place: Place, fate: Fate | None, *, apart: bool) -> Iterator[Violation]:
    if fate is None:
        yield Violation("truth", f"nobody sent {shown.body!r}, shown at {place}: {told(read)}")
        return
    if (place.queue, place.partition) != (fate.place.queue, fate.place.partition):
        yield Violation("truth", f"{shown.body} is at {place}: {told(read)}; sent by {told(fate.post)}")
    if fate.outcome == "none" and not (apart and fate.post.web != read.web):
        yield Violation("G2", f"{shown.body} is shown at {place}: {told(read)}; outcome none: {told(fate.post)}")
    if fate.outcome == "acknowledged" and place != fate.place:
        yield Violation("truth", f"{shown.body} is at {place}, not {fate.place}: {told(read)}; {told(fate.post)}")
    if read.end < fate.post.start:
        yield Violation("truth", f"{shown.body} is shown before it is sent: {told(read)}; {told(fate.post)}")


# Readers


class _Chain:
    """A reader's pages one after another: its cursors, and all it was shown."""

    def __init__(self) -> None:
        self.cursors: dict[int, str] = {}
        self.shown: dict[Place, str] = {}

    def cursor(self, partition: int) -> Position:
        """The position below which the reader was promised to know everything."""
        return _position(self.cursors[partition]) if partition in self.cursors else ids.FIRST

    def step(self, read: Read) -> Iterator[Violation]:
        """Takes the next page."""
        if read.since != self.cursors:
            yield Violation("page", f"starts at {read.since}, the page before ended at {self.cursors}: {told(read)}")
        for shown in read.shown:
            place = Place(read.queue, shown.partition, shown.id)
            if place in self.shown:
                yield Violation("page", f"{place} is shown twice to one reader: {told(read)}")
            self.shown[place] = shown.body
        yield from _page(read)
        self.cursors = {**self.cursors, **read.next}


def _page(read: Read) -> Iterator[Violation]:
    if extra := ({shown.partition for shown in read.shown} | read.next.keys()) - set(read.partitions):
        yield Violation("page", f"shows partitions {extra} that were not asked for: {told(read)}")
    if missing := set(read.partitions) - read.next.keys():
        yield Violation("page", f"says not where to go on in partitions {missing}: {told(read)}")
    order = [_position(shown.id) for shown in read.shown]
    if read.merge and order != sorted(order):
        yield Violation("page", f"is not in the order of time: {told(read)}")
    for partition in read.next:
        found = [_position(shown.id) for shown in read.shown if shown.partition == partition]
        for wrong in _part(read, partition, found):
            yield Violation("page", f"partition {partition} {wrong}: {told(read)}")


def _part(read: Read, partition: int, found: list[Position]) -> Iterator[str]:
    """What is wrong with one partition of a page, of which it shows these positions."""
    lower = _position(read.since[partition]) if partition in read.since else ids.FIRST
    upper, horizon = _position(read.next[partition]), _position(read.horizon)
    if found != sorted(set(found)):
        yield "is not in order"
    if found and found[0] < lower:
        yield "shows what is below its start"
    if found and max(found) >= horizon:
        yield "shows what is not below the horizon"
    if upper < lower or (found and upper <= max(found)):
        yield "has a cursor that goes back"
    if upper > max(lower, horizon):
        yield "has a cursor above the horizon"


def _readers(history: History) -> dict[str, list[Read]]:
    """The successful reads of each reader, in order."""
    found: dict[str, list[Read]] = defaultdict(list)
    for read in history.reads:
        if read.status == OK:
            found[read.reader].append(read)
    return found


def _chains(history: History, fates: dict[str, Fate], *, apart: bool) -> Iterator[Violation]:
    acknowledged: dict[str, list[tuple[Position, Fate]]] = defaultdict(list)
    for fate in _acknowledged(fates).values():
        acknowledged[fate.place.queue].append((_position(fate.place.id), fate))
    for name, reads in _readers(history).items():
        chain = _Chain()
        for read in reads:
            yield from chain.step(read)
        asked = {read.web for read in reads}
        for position, fate in acknowledged[reads[0].queue]:
            place = fate.place
            if apart and fate.post.web not in asked:
                continue
            if position < chain.cursor(place.partition) and chain.shown.get(place) != fate.sent.body:
                seen = chain.shown.get(place, "nothing")
                passed = next(read for read in reads if position < _position(read.next.get(place.partition, "0" * 32)))
                yield Violation(
                    "G1", f"{name} was shown {seen} at {place}: {told(fate.post)}; passed in {told(passed)}"
                )


# The full reads at the end


def _final(history: History, fates: dict[str, Fate]) -> Iterator[Violation]:
    contents = _contents(history)
    acknowledged = _acknowledged(fates)
    for number, found in contents.items():
        for place, fate in acknowledged.items():
            if found.get(place) != fate.sent.body:
                seen = found.get(place, "nothing")
                yield Violation("lost", f"full read {number} shows {seen} at {place}: {told(fate.post)}")
    rounds = sorted(contents)
    if not rounds or rounds[-1] <= SETTLED:
        yield Violation("settled", f"there were {len(rounds)} full reads, of which two must agree")
    for earlier, later in pairwise(rounds):
        before, after = contents[earlier].items(), contents[later].items()
        for place, body in before - after:
            yield Violation("settled", f"{body} at {place} is gone in full read {later}: {_fate_of(fates, body)}")
        for place, body in after - before if earlier >= SETTLED else ():
            yield Violation("settled", f"{body} at {place} is new in full read {later}: {_fate_of(fates, body)}")


def _contents(history: History) -> dict[int, dict[Place, str]]:
    """What each of the full reads found."""
    found: dict[int, dict[Place, str]] = defaultdict(dict)
    for read in history.reads:
        if read.final and read.status == OK:
            found[read.final] |= {Place(read.queue, one.partition, one.id): one.body for one in read.shown}
    return found


def _fate_of(fates: dict[str, Fate], body: str) -> str:
    fate = fates.get(body)
    return told(fate.post) if fate else "sent by nobody"


# Order


def _order(history: History) -> Iterator[Violation]:
    for post in history.posts:
        positions = [_position(name) for name in _prompt(post)]
        if post.after is not None and any(position <= _position(post.after) for position in positions):
            yield Violation("G3", f"not above its X-After: {told(post)}")
        for partition in {sent.partition for sent in post.sent}:
            part = [_position(name) for name in _prompt(post, partition)]
            if part != sorted(part):
                yield Violation("G3", f"a batch in another order than given: {told(post)}")
    for web in {post.web for post in history.posts}:
        yield from _ascending([post for post in history.posts if post.web == web and _prompt(post)])


def _prompt(post: Post, partition: int | None = None) -> list[str]:
    """The ids of a post's messages that are not delayed."""
    return [
        name
        for sent, name in zip(post.sent, post.ids, strict=False)
        if not sent.delay and partition in {None, sent.partition}
    ]


def _ascending(posts: list[Post]) -> Iterator[Violation]:
    """A post that begins after another's answer has higher ids, at one web process."""
    ended = sorted(posts, key=lambda post: post.end)
    highest: tuple[Position, Post] | None = None
    at = 0
    for post in posts:
        while ended[at].end < post.start:
            top = max(_position(name) for name in _prompt(ended[at]))
            highest = max(highest or (top, ended[at]), (top, ended[at]), key=lambda pair: pair[0])
            at += 1
        if highest and min(_position(name) for name in _prompt(post)) <= highest[0]:
            yield Violation("G3", f"not above an id given out before: {told(post)}; {told(highest[1])}")


# Availability


def available(history: History, limits: Limits) -> Iterator[Violation]:
    """Says where a request took too long, or where none succeeded though there was no fault."""
    requests: tuple[Post | Read, ...] = (*history.posts, *history.reads)
    for event in requests:
        if event.end - event.start > limits.bound and not _hit(event, history.faults, limits.grace):
            yield Violation("available", f"took {event.end - event.start:.1f} s: {told(event)}")
    webs = sorted({post.web for post in history.posts})
    following = [read for read in history.reads if not read.final]
    for start, end in _calm(history, limits):
        for web in webs:
            yield from _served("post", [post for post in history.posts if post.web == web], start, end)
            yield from _served("read", [read for read in following if read.web == web], start, end)


def _served(what: str, events: Sequence[Post | Read], start: float, end: float) -> Iterator[Violation]:
    tried = [event for event in events if start <= event.start <= end]
    if not any(event.status in {OK, CREATED} for event in tried):
        last = told(tried[-1]) if tried else "none was tried"
        yield Violation("available", f"no {what} succeeded from {start:.1f} to {end:.1f}, without any fault: {last}")


def _hit(event: Post | Read, faults: Iterable[Fault], grace: float) -> bool:
    """Tells whether a request was under way while its web process was paused or dead."""
    return any(
        fault.target == event.web and fault.start <= event.end and event.start <= fault.end + grace for fault in faults
    )


def _calm(history: History, limits: Limits) -> Iterator[tuple[float, float]]:
    """The times that are long enough without faults, and in any case the time after the last fault."""
    if not history.posts:
        return
    start, end = history.posts[0].start, history.posts[-1].start
    for fault in history.faults:
        if fault.start - start >= limits.calm:
            yield start, fault.start
        start = max(start, fault.end + limits.grace)
    if history.faults or end - start >= limits.calm:
        yield start, max(start, end)


def told(event: Post | Read) -> str:
    """A record in a line for people."""
    what = f"{event.queue} at {event.web}, {event.start:.3f}..{event.end:.3f}, {event.status}"
    if isinstance(event, Read):
        parts = ",".join(map(str, event.partitions))
        return f"[{event.reader} read {what}, partitions {parts}, since {event.since}, horizon {event.horizon}]"
    names = ",".join(f"{s.partition}:{name}" for s, name in zip(event.sent[:3], event.ids, strict=False))
    bodies = ",".join(sent.body for sent in event.sent[:3])
    after = f", after {event.after}" if event.after else ""
    return f"[{event.writer} posted {bodies} ({len(event.sent)}) to {what} {names}{after} {event.note}]"
