"""The rules for messages that are posted and read over HTTP.

A rule yields a text for each violation of its docstring.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from queuey.model import ids
from queuey.model.ids import Position
from tests.harness.checking.history import Fate, History, Place
from tests.harness.checking.records import CREATED, OK, ONLY_SENT, UNAVAILABLE, Post, Read
from tests.harness.checking.rules import Limits, Rules, Texts

FIRST_SETTLED_READ = 2
"""The number of the first full read that must agree with all later ones."""


@cache
def _position(text: str) -> Position:
    return ids.parse_position(text)


def answers(history: History, _: Limits) -> Texts:
    """Answers have only the statuses that the API promises, and 503 has Retry-After.

    An acknowledged post has one id for each message, and no id occurs twice. The workload sends no body twice; other
    rules rely on that.
    """
    bodies = Counter(sent.body for post in history.posts for sent in post.sent)
    yield from (f"{body} was sent {count} times" for body, count in bodies.items() if count > 1)
    places: set[Place] = set()
    for post in history.posts:
        yield from _check_answer(post, CREATED)
        if len(post.outcomes) != len(post.sent):
            yield f"{len(post.outcomes)} outcomes for {len(post.sent)} messages: {describe(post)}"
        if set(post.outcomes) != {"acknowledged"} and "acknowledged" in post.outcomes:
            yield f"acknowledged in part: {describe(post)}"
        if len(post.ids) != len(post.sent) * ("acknowledged" in post.outcomes):
            yield f"{len(post.ids)} ids for {len(post.sent)} messages: {describe(post)}"
        if (post.status == CREATED) != ("acknowledged" in post.outcomes):
            yield f"status {post.status} with outcomes {post.outcomes}: {describe(post)}"
        for sent, name in zip(post.sent, post.ids, strict=False):
            place = Place(post.queue, sent.partition, name)
            if place in places:
                yield f"{place} was given out twice: {describe(post)}"
            places.add(place)
    for read in history.reads:
        yield from _check_answer(read, OK)


def _check_answer(event: Post | Read, good: int) -> Texts:
    """Yields a text for a status that is not promised, and for 503 without Retry-After."""
    if event.status not in {good, UNAVAILABLE, ONLY_SENT}:
        yield f"status {event.status}: {describe(event)}"
    if event.status == UNAVAILABLE and not event.retry_after:
        yield f"503 without Retry-After: {describe(event)}"


def g1(history: History, limits: Limits) -> Texts:
    """A reader whose cursor is above an acknowledged message was shown it."""
    acknowledged: dict[str, list[tuple[Position, Fate]]] = defaultdict(list)
    for fate in history.acknowledged.values():
        acknowledged[fate.place.queue].append((_position(fate.place.id), fate))
    for name, reads in _reads_by_reader(history).items():
        webs = {read.web for read in reads}
        shown = {Place(read.queue, one.partition, one.id): one.body for read in reads for one in read.shown}
        cursors = {number: _position(text) for read in reads for number, text in read.next.items()}
        for position, fate in acknowledged[reads[0].queue]:
            place = fate.place
            if limits.apart and fate.post.web not in webs:
                continue
            if position < cursors.get(place.partition, ids.FIRST) and shown.get(place) != fate.sent.body:
                passed = next(read for read in reads if position < _position(read.next.get(place.partition, "0" * 32)))
                seen = shown.get(place, "nothing")
                yield f"{name} was shown {seen} at {place}: {describe(fate.post)}; passed in {describe(passed)}"


def _reads_by_reader(history: History) -> Mapping[str, list[Read]]:
    chains: dict[str, list[Read]] = defaultdict(list)
    for read in history.reads:
        if read.status == OK:
            chains[read.reader].append(read)
    return chains


def lost(history: History, _: Limits) -> Texts:
    """Each full read at the end shows every acknowledged message at its place, with its body."""
    for number, content in history.contents.items():
        for place, fate in history.acknowledged.items():
            if content.get(place) != fate.sent.body:
                yield f"full read {number} shows {content.get(place, 'nothing')} at {place}: {describe(fate.post)}"


def g2(history: History, limits: Limits) -> Texts:
    """A message whose 503 said ``none`` is never shown."""
    for read in history.reads:
        for shown in read.shown:
            fate = history.fates.get(shown.body)
            if fate and fate.outcome == "none" and not _is_in_another_centre(fate.post, read, limits):
                yield f"{shown.body} is shown at {shown.id}: {describe(read)}; outcome none: {describe(fate.post)}"


def _is_in_another_centre(post: Post, read: Read, limits: Limits) -> bool:
    return limits.apart and post.web != read.web


def settled(history: History, _: Limits) -> Texts:
    """Full reads agree from :data:`FIRST_SETTLED_READ` on, of which there are two; before it, messages only appear."""
    rounds = sorted(history.contents)
    if not rounds or rounds[-1] <= FIRST_SETTLED_READ:
        yield f"there were {len(rounds)} full reads, of which two must agree"
    for earlier, later in pairwise(rounds):
        before, after = history.contents[earlier].items(), history.contents[later].items()
        for change, places in (
            ("gone", before - after),
            ("new", after - before if earlier >= FIRST_SETTLED_READ else set()),
        ):
            for place, body in places:
                fate = history.fates.get(body)
                by = describe(fate.post) if fate else "sent by nobody"
                yield f"{body} at {place} is {change} in full read {later}: {by}"


def truth(history: History, limits: Limits) -> Texts:
    """Every message shown was sent before, to that queue and partition, and has only one place.

    In another data centre than that of the post, only the full reads at the end are held to one place: the post's first
    attempt may have been shown there before its undo arrived.
    """
    places: dict[str, Place] = {}
    for read in history.reads:
        for shown in read.shown:
            place, fate = Place(read.queue, shown.partition, shown.id), history.fates.get(shown.body)
            at = f"{shown.body} is at {place}"
            may_be_undone = fate is not None and not read.final and _is_in_another_centre(fate.post, read, limits)
            if not may_be_undone and places.setdefault(shown.body, place) != place:
                yield f"{at} and at {places[shown.body]}: {describe(read)}"
            if fate is None:
                yield f"{at}, and nobody sent it: {describe(read)}"
                continue
            if (place.queue, place.partition) != (fate.place.queue, fate.place.partition):
                yield f"{at}: {describe(read)}; sent by {describe(fate.post)}"
            if fate.outcome == "acknowledged" and place != fate.place and not may_be_undone:
                yield f"{at}, not {fate.place}: {describe(read)}; {describe(fate.post)}"
            if read.end < fate.post.start:
                yield f"{at} before it is sent: {describe(read)}; {describe(fate.post)}"


def g3(history: History, _: Limits) -> Texts:
    """Ids follow ``X-After`` and ascend in a batch; those of one web process ascend for a client that saw an answer."""
    for post in history.posts:
        if post.after is not None and any(one <= _position(post.after) for one in _prompt_ids(post)):
            yield f"not above its X-After: {describe(post)}"
        for partition in {sent.partition for sent in post.sent}:
            prompt_ids = _prompt_ids(post, partition)
            if prompt_ids != sorted(prompt_ids):
                yield f"a batch in another order than given: {describe(post)}"
    for web in {post.web for post in history.posts}:
        yield from _check_ascending([post for post in history.posts if post.web == web and _prompt_ids(post)])


def _prompt_ids(post: Post, partition: int | None = None) -> list[Position]:
    pairs = zip(post.sent, post.ids, strict=False)
    return [_position(name) for sent, name in pairs if not sent.delay and partition in {None, sent.partition}]


def _check_ascending(posts: list[Post]) -> Texts:
    """At one web process, a post that begins after another's answer has higher ids."""
    ended, at = sorted(posts, key=lambda post: post.end), 0
    highest: tuple[Position, Post] | None = None
    for post in posts:
        while ended[at].end < post.start:
            top = max(_prompt_ids(ended[at]))
            highest = max(highest or (top, ended[at]), (top, ended[at]), key=lambda pair: pair[0])
            at += 1
        if highest and min(_prompt_ids(post)) <= highest[0]:
            yield f"not above an id given out before: {describe(post)}; {describe(highest[1])}"


def page(history: History, _: Limits) -> Texts:
    """A page is in order and shows nothing below ``since``, at or above the horizon, or twice.

    Cursors never go back.
    """
    for reads in _reads_by_reader(history).values():
        cursors: dict[int, str] = {}
        shown_before: set[Place] = set()
        for read in reads:
            if read.since != cursors:
                yield f"starts at {read.since}, the page before ended at {cursors}: {describe(read)}"
            for place in (Place(read.queue, shown.partition, shown.id) for shown in read.shown):
                if place in shown_before:
                    yield f"{place} is shown twice to one reader: {describe(read)}"
                shown_before.add(place)
            yield from (f"{wrong}: {describe(read)}" for wrong in _check_page(read))
            cursors = {**cursors, **read.next}


def _check_page(read: Read) -> Texts:
    """Yields the rules of order, bounds and cursors that a page breaks."""
    if extra := ({shown.partition for shown in read.shown} | read.next.keys()) - set(read.partitions):
        yield f"shows partitions {extra} that were not asked for"
    if missing := set(read.partitions) - read.next.keys():
        yield f"says not where to go on in partitions {missing}"
    order = [_position(shown.id) for shown in read.shown]
    if read.merge and order != sorted(order):
        yield "is not in the order of time"
    for number, text in read.next.items():
        positions = [_position(shown.id) for shown in read.shown if shown.partition == number]
        lower = _position(read.since[number]) if number in read.since else ids.FIRST
        upper, horizon = _position(text), _position(read.horizon)
        wrong = {
            "is not in order": positions != sorted(set(positions)),
            "shows what is below its start": positions and positions[0] < lower,
            "shows what is not below the horizon": positions and max(positions) >= horizon,
            "has a cursor that goes back": upper < lower or (positions and upper <= max(positions)),
            "has a cursor above the horizon": upper > max(lower, horizon),
        }
        yield from (f"partition {number} {what}" for what, is_wrong in wrong.items() if is_wrong)


def available(history: History, limits: Limits) -> Texts:
    """No request takes longer than ``bound``. After faults, requests succeed again."""
    events: tuple[Post | Read, ...] = (*history.posts, *history.reads)
    for event in events:
        hit = (one.target == event.web and one.touches(event.start, event.end, limits.grace) for one in history.faults)
        if event.end - event.start > limits.bound and not any(hit):
            yield f"took {event.end - event.start:.1f} s: {describe(event)}"
    following = [read for read in history.reads if not read.final]
    for start, end in _calm_periods(history, limits):
        for web in sorted({post.web for post in history.posts}):
            for what, events_of_kind in ("post", history.posts), ("read", following):
                attempts = [event for event in events_of_kind if event.web == web and start <= event.start <= end]
                if not any(event.status in {OK, CREATED} for event in attempts):
                    last = describe(attempts[-1]) if attempts else "none was tried"
                    yield f"no {what} succeeded from {start:.1f} to {end:.1f}, without any fault: {last}"


def _calm_periods(history: History, limits: Limits) -> Iterator[tuple[float, float]]:
    """Yields the long enough periods without faults, and always the period after the last fault.

    If the machine stalled shortly before the end, that last period may be too short and is left out.
    """
    if not history.posts:
        return
    start, end = history.posts[0].start, history.posts[-1].start
    for fault in history.faults:
        if fault.start - start >= limits.calm:
            yield start, fault.start
        start = max(start, fault.end + limits.grace)
    last = max(history.faults, key=lambda fault: fault.end, default=None)
    if end - start >= limits.calm or (last is not None and last.kind != "stall"):
        yield start, max(start, end)


def describe(event: Post | Read) -> str:
    what = f"{event.queue} at {event.web}, {event.start:.3f}..{event.end:.3f}, {event.status}"
    if isinstance(event, Read):
        partitions = ",".join(map(str, event.partitions))
        return f"[{event.reader} read {what}, partitions {partitions}, since {event.since}, horizon {event.horizon}]"
    names = ",".join(f"{s.partition}:{name}" for s, name in zip(event.sent[:3], event.ids, strict=False))
    bodies = ",".join(sent.body for sent in event.sent[:3])
    after = f", after {event.after}" if event.after else ""
    return f"[{event.writer} posted {bodies} ({len(event.sent)}) to {what} {names}{after} {event.note}]"


MESSAGES: Rules = {
    "answers": (answers, "calls"),
    "G1": (g1, "acknowledged"),
    "lost": (lost, "acknowledged"),
    "G2": (g2, "none"),
    "settled": (settled, "full"),
    "truth": (truth, "seen"),
    "G3": (g3, "acknowledged"),
    "page": (page, "pages"),
    "available": (available, "calls"),
}
