"""Ways to spoil a good history, so that a checker that works must notice."""

from __future__ import annotations

import random

from msgspec import structs

from tests.harness.history import Fault, of
from tests.harness.spoiling import Spoil, instead
from tests.qdo.faults.checking.records import (
    Answered,
    Asked,
    Content,
    Ended,
    Handled,
    Heard,
    Joined,
    Observed,
    Record,
)


def _commits(records: list[Record]) -> list[tuple[Asked, Answered]]:
    answers = {(each.worker, each.call): each for each in of(records, Answered)}
    return [(each, answers[each.worker, each.call]) for each in of(records, Asked) if each.what == "commit"]


def _again(records: list[Record]) -> list[Handled]:
    """What was handled a second time, by somebody who went on after it."""
    handled = of(records, Handled)
    return [
        each
        for number, each in enumerate(handled[:-1])
        if each.id in {one.id for one in handled[:number]} and handled[number + 1].worker == each.worker
    ]


def _never(records: list[Record], rng: random.Random) -> list[Record]:
    victim = rng.choice(of(records, Handled)).id
    return [each for each in records if not (isinstance(each, Handled) and each.id == victim)]


def _gone(records: list[Record], rng: random.Random) -> list[Record]:
    (content,) = of(records, Content)
    return instead(records, content, structs.replace(content, messages=content.messages[:-1]))


def _swapped(records: list[Record], rng: random.Random) -> list[Record]:
    first, second = of(records, Handled)[:2]
    spoiled = instead(records, first, structs.replace(first, at=second.at))
    return instead(spoiled, second, structs.replace(second, at=first.at))


def _skipped(records: list[Record], rng: random.Random) -> list[Record]:
    victim = rng.choice(_again(records))
    return instead(records, victim)


def _late(records: list[Record], rng: random.Random) -> list[Record]:
    """The first worker begins its last message once more when the second has taken the partition."""
    handled = of(records, Handled)
    mine = [each for each in handled if each.worker == handled[0].worker]
    theirs = next(each for each in handled if each.worker != handled[0].worker)
    return [*records, structs.replace(mine[-1], at=theirs.at + 0.001)]


def _careless(records: list[Record], rng: random.Random) -> list[Record]:
    """A worker is suspended long before it handles something."""
    victim = of(records, Handled)[-1]
    return [*records, Heard(victim.at - 0.3, victim.worker, 1, "suspended"), Fault(0.0, victim.at, "cut")]


def _foreign(records: list[Record], rng: random.Random) -> list[Record]:
    """The first worker commits once more, after the second has taken the partition."""
    commits = _commits(records)
    (first, _), (asked, answered) = commits[0], next(each for each in commits if each[0].worker != commits[0][0].worker)
    spoiled = instead(records, asked, structs.replace(asked, worker=first.worker, call=99))
    return instead(spoiled, answered, structs.replace(answered, worker=first.worker, call=99))


def _twice_made(records: list[Record], rng: random.Random) -> list[Record]:
    (_, first), (_, second) = _commits(records)[:2]
    return instead(records, second, structs.replace(second, versions=first.versions))


def _by_nobody(records: list[Record], rng: random.Random) -> list[Record]:
    asked, answered = rng.choice(_commits(records)[:-1])
    return instead(instead(records, asked), answered)


def _lower(records: list[Record], rng: random.Random) -> list[Record]:
    (first, _), (second, _) = _commits(records)[:2]
    spoiled = instead(records, first, structs.replace(first, ids=second.ids))
    return instead(spoiled, second, structs.replace(second, ids=first.ids))


def _seen_back(records: list[Record], rng: random.Random) -> list[Record]:
    first, second = of(records, Observed)[:2]
    spoiled = instead(records, first, structs.replace(first, offsets=second.offsets))
    return instead(spoiled, second, structs.replace(second, offsets=first.offsets))


def _elsewhere(records: list[Record], rng: random.Random) -> list[Record]:
    """A taking finds another offset than was committed."""
    takes = [each for each in of(records, Answered) if each.ids]
    return instead(records, takes[1], structs.replace(takes[1], ids=takes[-1].ids))


def _ahead(records: list[Record], rng: random.Random) -> list[Record]:
    asked, _ = rng.choice(_commits(records)[:-1])
    (content,) = of(records, Content)
    ids = [identifier for identifier, _ in content.messages]
    following = ids[ids.index(asked.ids[content.place]) + 1]
    return instead(records, asked, structs.replace(asked, ids={content.place: following}))


def _without(kind: str) -> Spoil[Record]:
    def spoil(records: list[Record], rng: random.Random) -> list[Record]:
        return [each for each in records if not (isinstance(each, Fault) and each.kind == kind)]

    return spoil


def _stayed(records: list[Record], rng: random.Random) -> list[Record]:
    """Nobody who handed a partition back was told to leave, and all came long ago."""
    rest = [each for each in records if not isinstance(each, Ended)]
    return [structs.replace(each, at=0.0) if isinstance(each, Joined) else each for each in rest]


def _fallen(records: list[Record], rng: random.Random) -> list[Record]:
    victim = rng.choice(of(records, Ended))
    return instead(records, victim, structs.replace(victim, code=1))


def _behind(records: list[Record], rng: random.Random) -> list[Record]:
    last, before = of(records, Observed)[-1], of(records, Observed)[-2]
    return instead(records, last, structs.replace(last, offsets=before.offsets))


SPOILS: dict[str, tuple[set[str], Spoil[Record]]] = {
    "a message is not handled": ({"lost"}, _never),
    "an acknowledged message is not there": ({"lost"}, _gone),
    "two messages change places": ({"order", "stay"}, _swapped),
    "a stay has a gap": ({"stay"}, _skipped),
    "an earlier owner goes on": ({"alone", "halted"}, _late),
    "a suspended worker goes on": ({"halted"}, _careless),
    "an earlier owner commits": ({"fenced"}, _foreign),
    "a version is made twice": ({"fenced"}, _twice_made),
    "a version is made by nobody": ({"fenced"}, _by_nobody),
    "an offset goes back": ({"back"}, _lower),
    "an offset is seen to go back": ({"back"}, _seen_back),
    "an owner goes on elsewhere": ({"back"}, _elsewhere),
    "a commit runs ahead": ({"ahead"}, _ahead),
    "a killed worker was not killed": ({"twice"}, _without("kill")),
    "an expired session did not expire": ({"twice", "shaken"}, _without("expire")),
    "a suspended session had no reason": ({"shaken"}, _without("hush")),
    "a partition moves for nothing": ({"moved"}, _stayed),
    "a worker ends badly": ({"end"}, _fallen),
    "the last offset is missing": ({"end"}, _behind),
}
"""By what is wrong: the rules that must notice, and how to make it so."""
