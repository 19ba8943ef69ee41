"""Ways to spoil a good history so that a working checker must notice. There is a table for each set of rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from msgspec import structs

from queuey import ids
from queuey.ids import FIRST
from tests.harness.checking.claims import Acknowledgement, ClaimHistory, Delivery
from tests.harness.checking.records import (
    CREATED,
    UNAVAILABLE,
    Answered,
    Asked,
    Ended,
    Handled,
    Heard,
    Joined,
    Observed,
    Outcome,
    Post,
    Read,
    Record,
    Sent,
    Shown,
)
from tests.harness.history import Fault, records_of
from tests.sim.availability import EmptyAnswer

Records = list[Record]
Spoil = Callable[[Records, random.Random], Records | None]
"""Returns spoiled records, or None if the history has nothing to spoil in this way."""
Spoils = Mapping[str, tuple[set[str], Spoil]]
"""By description: the rules that must notice, and the function that spoils."""


def _put_instead(records: Records, old: Any, *new: Record) -> Records:  # noqa: ANN401 - a record
    return [new_record for record in records for new_record in (new if record is old else (record,))]


def _change_fields(records: Records, old: Any, **fields: Any) -> Records:  # noqa: ANN401 - a record and its fields
    return _put_instead(records, old, structs.replace(old, **fields))


def _swap_field(find: Callable[[Records], list[Any]], field: str) -> Spoil:
    def spoil(records: Records, _: random.Random) -> Records:
        first, second = find(records)[:2]
        one, other = getattr(first, field), getattr(second, field)
        return _change_fields(_change_fields(records, first, **{field: other}), second, **{field: one})

    return spoil


def _change_one(find: Callable[[Records], list[Any]], change: Callable[[Any], tuple[Record, ...]]) -> Spoil:
    """Returns a spoil that replaces a random one of the records found; it gives None if there are none."""

    def spoil(records: Records, rng: random.Random) -> Records | None:
        candidates = find(records)
        if not candidates:
            return None
        old = rng.choice(candidates)
        return _put_instead(records, old, *change(old))

    return spoil


# Messages


def _change_shown(change: Callable[[Shown], tuple[Shown, ...]], *outcomes: Outcome, final: int = 0) -> Spoil:
    """Returns a spoil that changes a random message with one of these outcomes on a page; it gives None without any.

    The page is of full read ``final`` or a later one; 0 is any page.
    """

    def spoil(records: Records, rng: random.Random) -> Records | None:
        posts = [pair for post in records_of(records, Post) for pair in zip(post.sent, post.outcomes, strict=True)]
        bodies = {sent.body for sent, outcome in posts if outcome in outcomes}
        reads = [read for read in records_of(records, Read) if read.final >= final]
        candidates = [(read, shown) for read in reads for shown in read.shown if shown.body in bodies]
        if not candidates:
            return None
        read, old = rng.choice(candidates)
        page = tuple(one for each in read.shown for one in (change(each) if each is old else (each,)))
        return _change_fields(records, read, shown=page)

    return spoil


def _replacer(**fields: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda old: (structs.replace(old, **{name: made(old) for name, made in fields.items()}),)


def _change_post(
    outcome: Outcome, change: Callable[[Post], tuple[Post, ...]], *, there: bool = False, web: str | None = None
) -> Spoil:
    """Returns a spoil that changes a post with this outcome.

    ``there``: only a post of which full reads show a message. ``web``: only a post to this web process.
    """

    def find(records: Records) -> list[Post]:
        final_bodies = {shown.body for read in records_of(records, Read) if read.final for shown in read.shown}
        posts = [post for post in records_of(records, Post) if outcome in post.outcomes and web in {None, post.web}]
        return [post for post in posts if not there or final_bodies & {sent.body for sent in post.sent}]

    return _change_one(find, change)


def _change_page(change: Callable[[Read], tuple[Read, ...]]) -> Spoil:
    def find(records: Records) -> list[Read]:
        return [
            one for one in records_of(records, Read) if len(one.shown) > len({shown.partition for shown in one.shown})
        ]

    return _change_one(find, change)


def _change_cursors(change: Callable[[Read], str]) -> Spoil:
    return _change_page(_replacer(next=lambda read: dict.fromkeys(read.next, change(read))))


def _make_next_id(name: str) -> str:
    ticks, low = ids.parse_position(name)
    return ids.to_hex((ticks + 1, low))


_make_refused = _replacer(
    status=lambda _: UNAVAILABLE,
    ids=lambda _: (),
    outcomes=lambda post: ("none",) * len(post.sent),
    retry_after=lambda _: True,
)
_make_accepted = _replacer(
    status=lambda _: CREATED,
    ids=lambda post: tuple(ids.to_hex((ids.EPOCH_TICKS + n, n)) for n in range(len(post.sent))),
    outcomes=lambda post: ("acknowledged",) * len(post.sent),
)
_alter_bodies = _replacer(sent=lambda post: tuple(Sent(f"{one.body}'", one.partition, one.delay) for one in post.sent))
_make_after_own_id = _replacer(
    sent=lambda post: tuple(Sent(one.body, one.partition) for one in post.sent),
    after=lambda post: max(post.ids, key=ids.parse_position),
)
_move_id = _replacer(id=lambda shown: _make_next_id(shown.id))
_STORED: tuple[Outcome, ...] = ("acknowledged", "unknown")

MESSAGES: Spoils = {
    "a reader is not shown a message": ({"G1"}, _change_shown(lambda _: (), "acknowledged")),
    "a full read lacks an acknowledged message": ({"lost"}, _change_shown(lambda _: (), "acknowledged", final=1)),
    "a full read lacks what another shows": ({"settled"}, _change_shown(lambda _: (), "unknown", final=2)),
    "a page shows a message twice": ({"page"}, _change_shown(lambda shown: (shown, shown), *_STORED)),
    "a body is another": ({"truth"}, _change_shown(_replacer(body=lambda _: "other"), *_STORED)),
    "an id is another": ({"truth"}, _change_shown(_move_id, "acknowledged")),
    "a partition is another": (
        {"truth"},
        _change_shown(_replacer(partition=lambda shown: 3 - shown.partition), *_STORED),
    ),
    "a message is at two ids": ({"truth"}, _change_shown(lambda shown: (shown, *_move_id(shown)), *_STORED)),
    "what is shown was never sent": ({"truth"}, _change_post("acknowledged", lambda _: ())),
    "what is shown was called none": ({"G2"}, _change_post("acknowledged", _make_refused)),
    "an unknown one that is there was called none": ({"G2"}, _change_post("unknown", _make_refused, there=True)),
    "what was called none was acknowledged": ({"lost"}, _change_post("none", _make_accepted)),
    "a post is recorded twice": ({"answers"}, _change_post("acknowledged", lambda post: (post, post))),
    "an id is given out twice": ({"answers"}, _change_post("acknowledged", lambda post: (post, *_alter_bodies(post)))),
    "an acknowledged id is another": (
        {"truth"},
        _change_post("acknowledged", _replacer(ids=lambda post: tuple(map(_make_next_id, post.ids)))),
    ),
    "an id is missing": ({"answers"}, _change_post("acknowledged", _replacer(ids=lambda post: post.ids[:-1]))),
    "an id is not above its X-After": ({"G3"}, _change_post("acknowledged", _make_after_own_id)),
    "a 503 lacks Retry-After": ({"answers"}, _change_post("none", _replacer(retry_after=lambda _: False))),
    "an answer is 500": ({"answers"}, _change_post("unknown", _replacer(status=lambda _: 500))),
    "a page is missing": ({"page"}, _change_page(lambda _: ())),
    "a page is recorded twice": ({"page"}, _change_page(lambda read: (read, read))),
    "a page is in another order": ({"page"}, _change_page(_replacer(shown=lambda read: read.shown[::-1]))),
    "a cursor goes back": ({"page"}, _change_cursors(lambda _: ids.to_hex(ids.FIRST))),
    "a cursor is above the horizon": ({"page"}, _change_cursors(lambda read: _make_next_id(read.horizon))),
    "a horizon is not above what is shown": ({"page"}, _change_page(_replacer(horizon=lambda read: read.shown[0].id))),
    "an answer took a minute": (
        {"available"},
        _change_post("acknowledged", _replacer(start=lambda post: post.start - 60), web="web-2"),
    ),
}


# Groups


def _find_commits(records: Records) -> list[tuple[Asked, Answered]]:
    answers = {(each.worker, each.call): each for each in records_of(records, Answered)}
    return [(each, answers[each.worker, each.call]) for each in records_of(records, Asked) if each.what == "commit"]


def _change_content(change: Callable[[Read], tuple[Read, ...]]) -> Spoil:
    return _change_one(lambda records: records_of(records, Read), change)


def _find_repeated(records: Records) -> list[Handled]:
    handled = records_of(records, Handled)
    return [
        each
        for number, each in enumerate(handled[:-1])
        if each.id in {one.id for one in handled[:number]} and handled[number + 1].worker == each.worker
    ]


def _drop_handling(records: Records, rng: random.Random) -> Records:
    victim = rng.choice(records_of(records, Handled)).id
    return [each for each in records if not (isinstance(each, Handled) and each.id == victim)]


def _handle_late(records: Records, _: random.Random) -> Records:
    """The first worker begins its last message again after the second has taken the partition."""
    handled = records_of(records, Handled)
    firsts = [each for each in handled if each.worker == handled[0].worker]
    second = next(each for each in handled if each.worker != handled[0].worker)
    return [*records, structs.replace(firsts[-1], at=second.at + 0.001)]


def _handle_suspended(records: Records, _: random.Random) -> Records:
    victim = records_of(records, Handled)[-1]
    return [*records, Heard(victim.at - 0.3, victim.worker, 1, "suspended"), Fault(0.0, victim.at, "cut")]


def _commit_foreign(records: Records, _: random.Random) -> Records:
    """The first commit of another worker becomes one of the first worker, which no longer has the partition."""
    commits = _find_commits(records)
    first = commits[0][0].worker
    asked, answered = next(each for each in commits if each[0].worker != first)
    return _change_fields(_change_fields(records, asked, worker=first, call=99), answered, worker=first, call=99)


def _repeat_version(records: Records, _: random.Random) -> Records:
    (_asked, first), (_other_asked, second) = _find_commits(records)[:2]
    return _change_fields(records, second, versions=first.versions)


def _drop_commit(records: Records, rng: random.Random) -> Records:
    asked, answered = rng.choice(_find_commits(records)[:-1])
    return _put_instead(_put_instead(records, asked), answered)


def _change_start(records: Records, _: random.Random) -> Records:
    """The second owner is told the offset of the last one."""
    takes = [each for each in records_of(records, Answered) if each.ids]
    return _change_fields(records, takes[1], ids=takes[-1].ids)


def _commit_ahead(records: Records, rng: random.Random) -> Records:
    asked, _ = rng.choice(_find_commits(records)[:-1])
    (place,), names = asked.ids, [shown.id for read in records_of(records, Read) for shown in read.shown]
    return _change_fields(records, asked, ids={place: names[names.index(asked.ids[place]) + 1]})


def _drop_faults(kind: str) -> Spoil:
    return lambda records, _: [each for each in records if not (isinstance(each, Fault) and each.kind == kind)]


def _hide_leaving(records: Records, _: random.Random) -> Records:
    """No worker that handed a partition back was told to leave, and all joined long ago."""
    rest = [each for each in records if not isinstance(each, Ended)]
    return [structs.replace(each, at=0.0) if isinstance(each, Joined) else each for each in rest]


GROUPS: Spoils = {
    "a message is not handled": ({"lost"}, _drop_handling),
    "an acknowledged message is not there": (
        {"lost"},
        _change_content(_replacer(shown=lambda read: read.shown[:-1])),
    ),
    "nobody has read what is there": ({"lost"}, _change_content(lambda _: ())),
    "two messages change places": ({"order", "stay"}, _swap_field(lambda r: records_of(r, Handled), "at")),
    "a stay has a gap": ({"stay"}, _change_one(_find_repeated, lambda _: ())),
    "an earlier owner goes on": ({"alone", "halted"}, _handle_late),
    "a suspended worker goes on": ({"halted"}, _handle_suspended),
    "an earlier owner commits": ({"fenced"}, _commit_foreign),
    "a version is made twice": ({"fenced"}, _repeat_version),
    "a version is made by nobody": ({"fenced"}, _drop_commit),
    "an offset goes back": ({"back"}, _swap_field(lambda r: [asked for asked, _ in _find_commits(r)], "ids")),
    "an offset is seen to go back": ({"back"}, _swap_field(lambda r: records_of(r, Observed), "offsets")),
    "an owner goes on elsewhere": ({"back"}, _change_start),
    "a commit runs ahead": ({"ahead"}, _commit_ahead),
    "a killed worker was not killed": ({"twice"}, _drop_faults("kill")),
    "an expired session did not expire": ({"twice", "shaken"}, _drop_faults("expire")),
    "a suspended session had no reason": ({"shaken"}, _drop_faults("hush")),
    "a partition moves for nothing": ({"moved"}, _hide_leaving),
    "a worker ends badly": ({"end"}, _change_one(lambda r: records_of(r, Ended), _replacer(code=lambda _: 1))),
    "the last offset is missing": (
        {"end"},
        lambda r, _: _change_fields(r, records_of(r, Observed)[-1], offsets=records_of(r, Observed)[-2].offsets),
    ),
}


# Claims

LATE = 9e9
"""A time after the end of every simulated history, in seconds."""


def _deliver_again(history: ClaimHistory, one: Delivery, number: int) -> None:
    history.deliveries.append(Delivery(one.position, number, LATE, LATE, [(LATE, LATE + 1)], first=True))


def _acknowledge(history: ClaimHistory, one: Delivery) -> None:
    history.acknowledgements.append(Acknowledgement(one.position, 0.0, 1.0, "done"))


def _deliver_both(history: ClaimHistory, first: Delivery, second: Delivery) -> None:
    history.releases.clear()
    _deliver_again(history, first, 9001)
    _deliver_again(history, second, 9002)


def _post_undelivered(history: ClaimHistory, one: Delivery, _: Delivery) -> None:
    """A message whose post was acknowledged is given up, but never delivered."""
    history.acknowledged.add(FIRST)
    history.given_up.append(Acknowledgement(FIRST, 0.0, 0.0, "done"))


def _redeliver_done(history: ClaimHistory, one: Delivery, other: Delivery) -> None:
    _acknowledge(history, one)
    _deliver_both(history, one, other)


def _redeliver_cancelled(history: ClaimHistory, one: Delivery, other: Delivery) -> None:
    history.cancelled.append(Acknowledgement(one.position, 0.0, 1.0, "done"))
    _deliver_both(history, one, other)


def _keep_done(history: ClaimHistory, one: Delivery, _: Delivery) -> None:
    _acknowledge(history, one)
    history.remaining = {one.position}


def _deliver_copies(history: ClaimHistory, one: Delivery, other: Delivery) -> None:
    history.bodies = {each.position: ("x", 0.0, 0.0) for each in (one, other)}
    history.acknowledged |= history.bodies.keys()
    _deliver_both(history, one, other)


def _reorder_key(history: ClaimHistory, one: Delivery, other: Delivery) -> None:
    history.stored.keys = {each.position: "key" for each in (one, other)}
    _deliver_both(history, other, one)


def _exceed_share(history: ClaimHistory, one: Delivery, other: Delivery) -> None:
    history.stored.shares = {1: 1}
    _deliver_both(history, one, other)


def _answer_empty(history: ClaimHistory, one: Delivery, _: Delivery) -> None:
    start, end = max(history.stored.free_spans(1, 0.0), key=lambda span: span[1] - span[0])
    history.empties.append(EmptyAnswer(start, min(end, start + 0.001), 0.0))


def _duplicate_letter(history: ClaimHistory, one: Delivery, _: Delivery) -> None:
    history.letter_places = {one.position: [(1, FIRST), (2, FIRST)]}


def _exceed_deliveries(history: ClaimHistory, one: Delivery, _: Delivery) -> None:
    history.stored.max_deliveries = 1


CLAIMS: Mapping[str, tuple[set[str], Callable[[ClaimHistory, Delivery, Delivery], object]]] = {
    "two clients have a message at once": ({"G4"}, lambda history, one, _: _deliver_both(history, one, one)),
    "a message is given after it was done": ({"G5"}, _redeliver_done),
    "a message is never given, and no dead letter": ({"G6", "given up"}, _post_undelivered),
    "a message is given after it was cancelled": ({"cancelled"}, _redeliver_cancelled),
    "a message that was done is not deleted": ({"on_ack"}, _keep_done),
    "a message is given before it is due": (
        {"delay"},
        lambda history, one, _: history.due_times.update({one.position: LATE}),
    ),
    "two copies are given": ({"dedup"}, _deliver_copies),
    "a message is two dead letters": ({"outbox"}, _duplicate_letter),
    "a message is given once too often": ({"limit"}, _exceed_deliveries),
    "messages of a key are given in another order, at once": ({"order", "key"}, _reorder_key),
    "more is claimed of a partition than its share": ({"places"}, _exceed_share),
    "a client is told that there is none": ({"empty"}, _answer_empty),
}
"""By description: the rules that must notice, and the function that spoils two messages of partition 1."""


def spoil_claims(history: ClaimHistory, what: str, rng: random.Random) -> ClaimHistory:
    """Returns a copy of the history with two random messages spoiled; the first one has the lower id."""
    history = deepcopy(history)
    deliveries = {one.position: one for one in history.deliveries}
    one, other = (deliveries[position] for position in sorted(rng.sample(sorted(deliveries), 2)))
    CLAIMS[what][1](history, one, other)
    return history
