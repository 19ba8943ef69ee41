"""Ways to spoil a good history of a group so that a working checker must notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from tests.harness.checking.records import Answered, Asked, Ended, Handled, Heard, Joined, Observed, Read, Record
from tests.harness.history import Fault, records_of

Records = list[Record]
Spoil = Callable[[Records], Records]


def put(records: Records, old: Any, *new: Record) -> Records:  # noqa: ANN401 - a record
    return [new_record for record in records for new_record in (new if record is old else (record,))]


def change(records: Records, old: Any, **fields: Any) -> Records:  # noqa: ANN401 - a record and its fields
    return put(records, old, structs.replace(old, **fields))


def swap(records: Records, two: Sequence[Any], field: str) -> Records:
    first, second = two
    one, other = getattr(first, field), getattr(second, field)
    return change(change(records, first, **{field: other}), second, **{field: one})


def handled(records: Records) -> list[Handled]:
    return records_of(records, Handled)


def commits(records: Records) -> list[tuple[Asked, Answered]]:
    answers = {(each.worker, each.call): each for each in records_of(records, Answered)}
    return [(each, answers[each.worker, each.call]) for each in records_of(records, Asked) if each.what == "commit"]


def change_read(**fields: Callable[[Read], Any]) -> Spoil:
    def spoil(records: Records) -> Records:
        (read,) = records_of(records, Read)
        return change(records, read, **{name: make(read) for name, make in fields.items()})

    return spoil


def without(drop: Callable[[Records], list[Any]]) -> Spoil:
    """Returns a spoil that drops the records found."""

    def spoil(records: Records) -> Records:
        dropped = [id(each) for each in drop(records)]
        return [each for each in records if id(each) not in dropped]

    return spoil


def faults(kind: str) -> Spoil:
    return without(lambda records: [each for each in records_of(records, Fault) if each.kind == kind])


def handle_late(records: Records) -> Records:
    """The first worker begins its last message again after the second has taken the partition."""
    firsts = [each for each in handled(records) if each.worker == handled(records)[0].worker]
    second = handled(records)[len(firsts)]
    return [*records, structs.replace(firsts[-1], at=second.at + 0.001)]


def handle_suspended(records: Records) -> Records:
    victim = handled(records)[-1]
    return [*records, Heard(victim.at - 0.3, victim.worker, 1, "suspended"), Fault(0.0, victim.at, "cut")]


def commit_foreign(records: Records) -> Records:
    """The first commit of another worker becomes one of the first worker, which no longer has the partition."""
    first = commits(records)[0][0].worker
    asked, answered = next(each for each in commits(records) if each[0].worker != first)
    return change(change(records, asked, worker=first, call=99), answered, worker=first, call=99)


def commit_ahead(records: Records) -> Records:
    asked, _ = commits(records)[1]
    (place,), names = asked.ids, [shown.id for read in records_of(records, Read) for shown in read.shown]
    return change(records, asked, ids={place: names[names.index(asked.ids[place]) + 1]})


def start_elsewhere(records: Records) -> Records:
    """The second owner is told the offset of the last one."""
    takes = [each for each in records_of(records, Answered) if each.ids]
    return change(records, takes[1], ids=takes[-1].ids)


def hide_leaving(records: Records) -> Records:
    """No worker that handed a partition back was told to leave, and all joined long ago."""
    rest = [each for each in records if not isinstance(each, Ended)]
    return [structs.replace(each, at=0.0) if isinstance(each, Joined) else each for each in rest]


def find_repeated(records: Records) -> list[Handled]:
    """Returns a message that its second owner handled again, with others after it."""
    seen: set[str] = set()
    for each in handled(records):
        if each.id in seen:
            return [each]
        seen.add(each.id)
    return []


GROUPS: Mapping[str, tuple[set[str], Spoil]] = {
    "a message is not handled": ({"lost"}, without(lambda r: handled(r)[:1])),
    "an acknowledged message is not there": ({"lost"}, change_read(shown=lambda read: read.shown[:-1])),
    "nobody has read what is there": ({"lost"}, without(lambda r: records_of(r, Read))),
    "two messages change places": ({"order", "stay"}, lambda r: swap(r, handled(r)[:2], "at")),
    "a stay has a gap": ({"stay"}, without(find_repeated)),
    "an earlier owner goes on": ({"alone", "halted"}, handle_late),
    "a suspended worker goes on": ({"halted"}, handle_suspended),
    "an earlier owner commits": ({"fenced"}, commit_foreign),
    "a version is made twice": ({"fenced"}, lambda r: change(r, commits(r)[1][1], versions=commits(r)[0][1].versions)),
    "a version is made by nobody": ({"fenced"}, without(lambda r: [*commits(r)[1]])),
    "an offset goes back": ({"back"}, lambda r: swap(r, [asked for asked, _ in commits(r)[:2]], "ids")),
    "an offset is seen to go back": ({"back"}, lambda r: swap(r, records_of(r, Observed)[:2], "offsets")),
    "an owner goes on elsewhere": ({"back"}, start_elsewhere),
    "a commit runs ahead": ({"ahead"}, commit_ahead),
    "a killed worker was not killed": ({"twice"}, faults("kill")),
    "an expired session did not expire": ({"twice", "shaken"}, faults("expire")),
    "a session was suspended without a fault": ({"shaken"}, faults("hush")),
    "a partition moves for nothing": ({"moved"}, hide_leaving),
    "a worker ends badly": ({"end"}, lambda r: change(r, records_of(r, Ended)[0], code=1)),
    "the last offset is missing": (
        {"end"},
        lambda r: change(r, records_of(r, Observed)[-1], offsets=records_of(r, Observed)[-2].offsets),
    ),
}
"""By description: the rules that must notice, and the function that spoils."""
