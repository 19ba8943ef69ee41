"""Ways to spoil a good history, one record each, so that a checker that works must notice."""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec import structs

from queuey import ids
from tests.faults.checking.records import Event, Outcome, Post, Read, Sent, Shown
from tests.harness.history import of
from tests.harness.spoiling import Spoil, instead, spoil_one


def _bodies(records: list[Event], outcomes: set[Outcome]) -> set[str]:
    pairs = [pair for post in of(records, Post) for pair in zip(post.sent, post.outcomes, strict=True)]
    return {sent.body for sent, outcome in pairs if outcome in outcomes}


def _shown(change: Callable[[Shown], tuple[Shown, ...]], *outcomes: Outcome, final: int = 0) -> Spoil[Event]:
    """Changes a message on a page, from a ``final`` full read on."""

    def find(records: list[Event]) -> list[tuple[Read, Shown]]:
        wanted = _bodies(records, set(outcomes))
        reads = [read for read in of(records, Read) if read.final >= final]
        return [(read, shown) for read in reads for shown in read.shown if shown.body in wanted]

    def spoil(records: list[Event], rng: random.Random) -> list[Event] | None:
        if not (found := find(records)):
            return None
        read, shown = rng.choice(found)
        page = tuple(one for each in read.shown for one in (change(each) if each is shown else (each,)))
        return instead(records, read, structs.replace(read, shown=page))

    return spoil


def _post(
    change: Callable[[Post], tuple[Post, ...]], outcome: Outcome, *, there: bool = False, web: str | None = None
) -> Spoil[Event]:
    """Changes a post of this outcome; ``there``: one whose messages the full reads show."""

    def find(records: list[Event]) -> list[Post]:
        seen = {shown.body for read in of(records, Read) if read.final for shown in read.shown}
        posts = [post for post in of(records, Post) if outcome in post.outcomes and web in {None, post.web}]
        return [post for post in posts if not there or seen & {sent.body for sent in post.sent}]

    return spoil_one(find, change)


def _read(change: Callable[[Read], tuple[Read, ...]]) -> Spoil[Event]:
    """Changes a page with several messages of one partition."""
    return spoil_one(
        lambda records: [
            read for read in of(records, Read) if len(read.shown) > len({shown.partition for shown in read.shown})
        ],
        change,
    )


def _higher(name: str, ticks: int = 1) -> str:
    position = ids.parse_position(name)
    return ids.to_hex((position[0] + ticks, position[1]))


def _refused(post: Post) -> tuple[Post, ...]:
    outcomes = tuple[Outcome, ...](["none"] * len(post.sent))
    return (structs.replace(post, status=503, ids=(), outcomes=outcomes, retry_after=True),)


def _accepted(post: Post) -> tuple[Post, ...]:
    names = tuple(ids.to_hex((ids.EPOCH_TICKS + n, n)) for n in range(len(post.sent)))
    outcomes = tuple[Outcome, ...](["acknowledged"] * len(post.sent))
    return (structs.replace(post, status=201, ids=names, outcomes=outcomes),)


def _same_ids(post: Post) -> tuple[Post, ...]:
    sent = tuple(Sent(f"{one.body}'", one.partition, one.delay) for one in post.sent)
    return post, structs.replace(post, sent=sent)


def _before_after(post: Post) -> tuple[Post, ...]:
    sent = tuple(Sent(one.body, one.partition) for one in post.sent)
    return (structs.replace(post, sent=sent, after=max(post.ids, key=ids.parse_position)),)


def _cursors(change: Callable[[Read], str]) -> Spoil[Event]:
    return _read(lambda read: (structs.replace(read, next=dict.fromkeys(read.next, change(read))),))


SPOILS: dict[str, tuple[set[str], Spoil[Event]]] = {
    "a reader is not shown a message": ({"G1"}, _shown(lambda _: (), "acknowledged")),
    "a full read lacks an acknowledged message": ({"lost"}, _shown(lambda _: (), "acknowledged", final=1)),
    "a full read lacks what another shows": ({"settled"}, _shown(lambda _: (), "unknown", final=2)),
    "a page shows a message twice": ({"page"}, _shown(lambda shown: (shown, shown), "acknowledged", "unknown")),
    "a body is another": (
        {"truth"},
        _shown(lambda shown: (structs.replace(shown, body="other"),), "acknowledged", "unknown"),
    ),
    "an id is another": (
        {"truth"},
        _shown(lambda shown: (structs.replace(shown, id=_higher(shown.id)),), "acknowledged"),
    ),
    "a partition is another": (
        {"truth"},
        _shown(lambda shown: (structs.replace(shown, partition=3 - shown.partition),), "acknowledged", "unknown"),
    ),
    "a message is at two ids": (
        {"truth"},
        _shown(lambda shown: (shown, structs.replace(shown, id=_higher(shown.id))), "acknowledged", "unknown"),
    ),
    "what is shown was never sent": ({"truth"}, _post(lambda _: (), "acknowledged")),
    "what is shown was called none": ({"G2"}, _post(_refused, "acknowledged")),
    "an unknown one that is there was called none": ({"G2"}, _post(_refused, "unknown", there=True)),
    "what was called none was acknowledged": ({"lost"}, _post(_accepted, "none")),
    "a post is recorded twice": ({"answers"}, _post(lambda post: (post, post), "acknowledged")),
    "an id is given out twice": ({"answers"}, _post(_same_ids, "acknowledged")),
    "an acknowledged id is another": (
        {"truth"},
        _post(lambda post: (structs.replace(post, ids=tuple(map(_higher, post.ids))),), "acknowledged"),
    ),
    "an id is missing": (
        {"answers"},
        _post(lambda post: (structs.replace(post, ids=post.ids[:-1]),), "acknowledged"),
    ),
    "an id is not above its X-After": ({"G3"}, _post(_before_after, "acknowledged")),
    "a 503 lacks Retry-After": (
        {"answers"},
        _post(lambda post: (structs.replace(post, retry_after=False),), "none"),
    ),
    "an answer is 500": ({"answers"}, _post(lambda post: (structs.replace(post, status=500),), "unknown")),
    "a page is missing": ({"page"}, _read(lambda _: ())),
    "a page is recorded twice": ({"page"}, _read(lambda read: (read, read))),
    "a page is in another order": (
        {"page"},
        _read(lambda read: (structs.replace(read, shown=read.shown[::-1]),)),
    ),
    "a cursor goes back": ({"page"}, _cursors(lambda _: ids.to_hex(ids.FIRST))),
    "a cursor is above the horizon": ({"page"}, _cursors(lambda read: _higher(read.horizon))),
    "a horizon is not above what is shown": (
        {"page"},
        _read(lambda read: (structs.replace(read, horizon=read.shown[0].id),)),
    ),
    "an answer took a minute": (
        {"available"},
        _post(lambda post: (structs.replace(post, start=post.start - 60),), "acknowledged", web="web-2"),
    ),
}
"""By what is wrong: the rules that must notice, and how to make it so."""
