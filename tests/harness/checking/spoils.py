"""Ways to spoil a good history of a group so that a working checker must notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from tests.harness.checking.records import (
    Answered,
    Asked,
    Ended,
    Handled,
    Heard,
    Joined,
    Observed,
    Read,
    Record,
)
from tests.harness.history import Fault, records_of

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


def _replacer(**fields: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda old: (structs.replace(old, **{name: made(old) for name, made in fields.items()}),)


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
