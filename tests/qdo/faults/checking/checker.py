"""Judges a recorded history: pure functions from records to violations.

The rules, by the names that violations carry:

* ``lost``: every message that was acknowledged, and every other one that is there in the end, was handled.
* ``order``: a message is handled for the first time only after all before it in its partition.
* ``stay``: while a partition is with a worker, its messages are handled one after another, without a gap, from the
  recorded offset on, each once.
* ``alone``: nobody begins a message of a partition that another session has taken since; but who was stopped, or was
  told late, may for a moment.
* ``halted``: nobody begins a message while its session is suspended, or after it was lost or the partition handed back.
* ``fenced``: nobody commits for a partition that another session has taken; every version of an offset was made by one
  taking, one commit or one release.
* ``back``: offsets never go back, neither as they were committed nor as somebody from outside sees them, and each
  owner goes on where the last one was.
* ``ahead``: a commit does not run ahead of what was handled.
* ``twice``: messages are handled twice only after a failure that explains it.
* ``shaken``: sessions are suspended or lost only after a failure that explains it.
* ``moved``: a partition is taken away from somebody who stays only after somebody came, and without failures only in
  favour of him.
* ``end``: workers that are told to leave end in order, and others not by themselves without a reason; in the end the
  offsets are those of the last messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from signal import SIGTERM
from typing import NamedTuple

from qdo.worker import exit_codes
from queuey.client import order_of
from tests.harness.history import Fault
from tests.harness.results import Violation
from tests.qdo.faults.checking.history import NEVER, Call, History, Stay
from tests.qdo.faults.checking.records import Handled, Heard

SERVICE: frozenset[str] = frozenset({"cut", "leader", "hush"})
STOPS: frozenset[str] = frozenset({"pause", "stall"})
SILENT: frozenset[str] = STOPS | {"expire"}
"""After which a worker goes on for a moment although its session is over."""
FAILURES: frozenset[str] = SERVICE | SILENT | {"kill", "silence"}

GIVING_UP = 30.0
"""Seconds after which a worker at the latest ends that cannot join its group."""


class Limits(NamedTuple):
    """How long things may take that are not done in one instant, in seconds.

    Attributes:
        reaction: From the moment when a worker hears that it is to stop until it begins nothing any more.
        late: After a stop of a process until it knows that its session has ended.
        unaware: After a session was ended behind its worker's back until the worker knows. Nobody may tell it, and
            then it is the silence that does.
        recovery: After a fault of the coordination service, until its effects are over.
        settling: Within which changes of membership count as one.
    """

    reaction: float = 0.15
    late: float = 1.0
    unaware: float = 1.0
    recovery: float = 6.0
    settling: float = 2.0


# Messages


def _numbers(history: History) -> dict[str, dict[str, int]]:
    """Returns by place and id the number of each message, from 0 on."""
    return {
        place: {identifier: number for number, (identifier, _) in enumerate(messages)}
        for place, messages in history.contents.items()
    }


def _lost(history: History, limits: Limits) -> Iterator[str]:
    handled = {(each.place, each.id): each.body for each in history.handled}
    for place, messages in history.contents.items():
        for identifier, body in messages:
            if handled.get((place, identifier)) != body:
                yield f"{body} ({place} {identifier}) was never handled"
    there = {(place, identifier) for place, messages in history.contents.items() for identifier, _ in messages}
    for posted in history.posted:
        for identifier, body in zip(posted.ids, posted.bodies, strict=False):
            if (posted.place, identifier) not in there:
                yield f"{body} ({posted.place} {identifier}) was acknowledged and is not there"


def _order(history: History, limits: Limits) -> Iterator[str]:
    numbers = _numbers(history)
    next_ones: dict[str, int] = defaultdict(int)
    for each in history.handled:
        number = numbers.get(each.place, {}).get(each.id)
        if number is None:
            yield f"nobody posted {_told(each)}"
        elif number > next_ones[each.place]:
            yield f"{number - next_ones[each.place]} before it were not handled: {_told(each)}"
        elif number == next_ones[each.place]:
            next_ones[each.place] += 1


def _stay(history: History, limits: Limits) -> Iterator[str]:
    numbers = _numbers(history)
    for each in history.strays:
        yield f"not the worker's partition: {_told(each)}"
    for stay in _stays(history):
        number = -1 if stay.offset is None else numbers[stay.place].get(stay.offset, -1)
        for each in stay.handled:
            found = numbers[stay.place].get(each.id, -1)
            if found != number + 1:
                yield (f"number {found} after {number} of a stay since {stay.start:.3f}: {_told(each)}")
            number = found


# Owners


def _alone(history: History, limits: Limits) -> Iterator[str]:
    takings = _takings(history)
    for stay in _stays(history):
        others = [
            call.end for version, call in takings[stay.place] if version > stay.version and call.owner[0] != stay.worker
        ]
        since = min(others, default=NEVER)
        late = [each for each in stay.handled if each.at > since]
        for each in late:
            known = _excused(history, stay.worker, STOPS | {"kill"}, each.at, limits.late)
            if not known and not _excused(history, stay.worker, frozenset({"expire"}), each.at, limits.unaware):
                yield f"{each.at - since:.3f} s after another took it: {_told(each)}"


def _halted(history: History, limits: Limits) -> Iterator[str]:
    states: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for heard in history.heard:
        states[heard.worker].append((heard.at, heard.event))
    for stay in _stays(history):
        mine = states[stay.worker]
        for each in stay.handled:
            if stay.end < each.at - (limits.reaction if stay.how == "lost" else 0.0) and not _excused(
                history, stay.worker, STOPS, each.at, limits.reaction
            ):
                yield f"{each.at - stay.end:.3f} s after it was {stay.how}: {_told(each)}"
            at = bisect_right(mine, (each.at, "")) - 1
            if at < 0 or mine[at][1] == "connected":
                continue
            if mine[at][1] == "lost" and mine[at][0] < stay.start:
                continue
            since = each.at - mine[at][0]
            if since > limits.reaction and not _excused(history, stay.worker, STOPS, each.at, limits.reaction):
                yield f"{since:.3f} s after its session was {mine[at][1]}: {_told(each)}"


def _takings(history: History) -> dict[str, list[tuple[int, Call]]]:
    """Returns by place the takings with their versions, in the order of versions."""
    return _made(call for call in history.calls if call.asked.what == "take")


def _made(calls: Iterable[Call]) -> dict[str, list[tuple[int, Call]]]:
    """Returns by place what is known to have made a version, in the order of versions."""
    made: dict[str, list[tuple[int, Call]]] = defaultdict(list)
    for call in calls:
        for place in call.asked.versions:
            version = call.version(place)
            if version is not None:
                made[place].append((version, call))
    for found in made.values():
        found.sort(key=lambda pair: pair[0])
    return made


def _fenced(history: History, limits: Limits) -> Iterator[str]:
    in_doubt = history.released.copy()  # a release makes a version with ZooKeeper and none in a file
    for call in history.calls:
        for place in call.asked.versions:
            in_doubt[place] += not call.known
    for place, made in _made(history.calls).items():
        yield from _foreign(place, [call for _, call in made])
        yield from _disordered(place, made, in_doubt[place])


def _foreign(place: str, made: Sequence[Call]) -> Iterator[str]:
    """Tells of commits by another session than the one that has taken the place last."""
    owner: Call | None = None
    for call in made:
        if call.asked.what == "take":
            owner = call
        elif owner is None or call.owner != owner.owner:
            yield f"{_call(call, place)}; taken before by {owner and _call(owner, place)}"


def _disordered(place: str, made: Sequence[tuple[int, Call]], in_doubt: int) -> Iterator[str]:
    """Tells of versions that were made twice, or by nobody, or not in the order of time."""
    for (earlier, before), (later, after) in pairwise(made):
        if earlier == later:
            yield f"one version twice: {_call(before, place)}; {_call(after, place)}"
        if after.end < before.asked.at:
            yield f"versions went back: {_call(after, place)}; {_call(before, place)}"
    gaps = made[-1][0] - made[0][0] + 1 - len({version for version, _ in made})
    if gaps > in_doubt:
        yield f"{gaps} versions of {place} were made by nobody known"


# Offsets


def _back(history: History, limits: Limits) -> Iterator[str]:
    doubtful = {place for call in history.calls if not call.known for place in call.asked.versions}
    for place, made in _made(history.calls).items():
        last: tuple[int, str] | None = None
        for version, call in made:
            if call.asked.what == "take":
                found = call.answer and call.answer.ids.get(place)
                between = version - last[0] - 1 if last is not None else 0  # a release, or what nobody knows of
                if last is not None and between <= (place not in doubtful) and found != last[1]:
                    yield f"goes on at {found}, not at {last[1]}: {_call(call, place)}"
                identifier = found or (last and last[1])
            else:
                identifier = call.asked.ids.get(place) or (last and last[1])
            if last is not None and (identifier is None or order_of(identifier) < order_of(last[1])):
                yield f"{identifier} after {last[1]}: {_call(call, place)}"
            if identifier is not None:
                last = version, identifier
    seen: dict[str, str] = {}
    for observed in history.observed:
        for place in seen.keys() | observed.offsets.keys():
            now, before = observed.offsets.get(place), seen.get(place)
            if before is not None and (now is None or order_of(now) < order_of(before)):
                yield f"{place} was seen at {before}, and at {now} at {observed.end:.3f}"
        seen |= observed.offsets


def _ahead(history: History, limits: Limits) -> Iterator[str]:
    stays: dict[tuple[str, str], list[tuple[float, dict[str, float]]]] = defaultdict(list)
    for stay in _stays(history):
        stays[stay.worker, stay.place].append((stay.start, {each.id: each.at for each in stay.handled}))
    for call in history.calls:
        for place, identifier in call.asked.ids.items():
            mine = [handled for start, handled in stays[call.asked.worker, place] if start <= call.asked.at]
            if not mine or mine[-1].get(identifier, NEVER) > call.asked.at:
                yield f"commits {identifier}, which it has not handled: {_call(call, place)}"


# Failures


def duplicates(history: History) -> Iterator[tuple[Handled, Handled]]:
    """Yields the pairs of one message that was handled and then handled again."""
    last: dict[tuple[str, str], Handled] = {}
    for each in history.handled:
        key = each.place, each.id
        if key in last:
            yield last[key], each
        last[key] = each


def _twice(history: History, limits: Limits) -> Iterator[str]:
    for first, again in duplicates(history):
        if cause_of(history, first, again, limits) is None:
            yield f"nothing explains it: {_told(first)}; {_told(again)}"


def cause_of(history: History, first: Handled, again: Handled, limits: Limits) -> Fault | None:
    """Returns a failure that explains that a message was handled again, if there is one: the narrowest."""
    found = [fault for fault in history.faults if fault.start <= again.at and _hit(fault, first, again, limits)]
    return max(found, key=lambda fault: (fault.kind != "stall", bool(fault.target), fault.start), default=None)


def _hit(fault: Fault, first: Handled, again: Handled, limits: Limits) -> bool:
    """Tells whether a failure hit whoever handled a message first before he had recorded it, or him who came late."""
    if fault.kind in SERVICE or (fault.kind in STOPS and not fault.target):
        return fault.end + limits.recovery >= first.at
    kinds = FAILURES if fault.target == first.worker else SILENT if fault.target == again.worker else frozenset()
    late = limits.unaware if fault.kind == "expire" else limits.late
    return fault.kind in kinds and fault.end + late >= first.at


def _shaken(history: History, limits: Limits) -> Iterator[str]:
    leaving = _leaving(history)
    for heard in history.heard:
        if (
            heard.event != "connected"
            and leaving.get(heard.worker, NEVER) > heard.at
            and not _explained(history, heard, limits)
        ):
            yield f"{heard.worker} is {heard.event} at {heard.at:.3f} for no reason"


def _explained(history: History, heard: Heard, limits: Limits) -> bool:
    for fault in history.faults:
        every = fault.kind in SERVICE or (fault.kind in STOPS and not fault.target)
        if not every and (fault.target != heard.worker or fault.kind not in FAILURES):
            continue
        if fault.start <= heard.at <= fault.end + limits.recovery:
            return True
    return False


def _excused(history: History, worker: str, kinds: frozenset[str], at: float, late: float) -> bool:
    """Tells whether a worker could not know better at an instant, on account of a failure that is just over."""
    return any(
        fault.target == worker and fault.kind in kinds and fault.start <= at <= fault.end + late
        for fault in history.faults
    )


# Moves and ends


def _moved(history: History, limits: Limits) -> Iterator[str]:
    calm = not any(fault.kind in FAILURES and not _harmless(fault, limits) for fault in history.faults)
    came = [joined.at for joined in history.joined]
    leaving = _leaving(history)
    for place, stays in history.stays.items():
        for stay, after in pairwise(stays):
            if stay.how != "revoked" or leaving.get(stay.worker, NEVER) < stay.end:
                continue
            since = stay.start - limits.settling
            if calm:
                came = [joined.at for joined in history.joined if joined.worker == after.worker != stay.worker]
            if not any(since < at < stay.end + limits.settling for at in came):
                yield f"{place} went from {stay.worker} to {after.worker} at {stay.end:.3f}"


def _harmless(fault: Fault, limits: Limits) -> bool:
    """Tells whether a process stood still for too short a time for its session to end."""
    return fault.kind in STOPS and fault.end - fault.start < limits.unaware / 2


def _leaving(history: History) -> dict[str, float]:
    """Returns when workers were told to leave."""
    return {ended.worker: ended.told for ended in history.ended if ended.told is not None}


def _end(history: History, limits: Limits) -> Iterator[str]:
    joined = {each.worker for each in history.joined}
    for ended in history.ended:
        disturbed = any(
            fault.kind in FAILURES
            and (not fault.target or fault.target == ended.worker)
            and fault.start <= ended.at
            and fault.end + limits.recovery >= (ended.at - GIVING_UP if ended.told is None else ended.told)
            for fault in history.faults
        )
        if ended.told is None:
            well = disturbed
        else:
            # Who was told before it listened to signals ends as every process does. Who lost its session while it
            # finished what it had in hand says that this is handled again.
            well = ended.code == 0 or (ended.code == -SIGTERM and ended.worker not in joined)
            well = well or (ended.code == exit_codes.UNFINISHED and disturbed)
        if not well:
            yield f"{ended.worker} ended with {ended.code} at {ended.at:.3f}, told at {ended.told}"
    last = history.observed[-1].offsets if history.observed else {}
    for place, messages in history.contents.items():
        if messages and last.get(place) != messages[-1][0]:
            yield f"{place} is at {last.get(place)}, the last message is {messages[-1]}"


# Words


def _stays(history: History) -> Iterator[Stay]:
    for stays in history.stays.values():
        yield from stays


def _told(each: Handled) -> str:
    return f"{each.worker} handled {each.body} ({each.place} {each.id}) at {each.at:.3f}"


def _call(call: Call, place: str) -> str:
    asked = call.asked
    what = f"{asked.what} {asked.ids.get(place, '')}".rstrip()
    return f"{asked.worker}/{asked.life} {what} of {place} at {asked.at:.3f}, version {call.version(place)}"


RULES: Mapping[str, tuple[Callable[[History, Limits], Iterator[str]], str]] = {
    "lost": (_lost, "messages"),
    "order": (_order, "handled"),
    "stay": (_stay, "handled"),
    "alone": (_alone, "handled"),
    "halted": (_halted, "handled"),
    "fenced": (_fenced, "calls"),
    "back": (_back, "calls"),
    "ahead": (_ahead, "commits"),
    "twice": (_twice, "twice"),
    "shaken": (_shaken, "shaken"),
    "moved": (_moved, "stays"),
    "end": (_end, "ended"),
}
"""What each rule is applied to, besides, by its name among the counts."""


def check(history: History, limits: Limits = Limits()) -> list[Violation]:  # noqa: B008 - immutable
    """Applies all rules."""
    return [Violation(rule, text) for rule, (broken, _) in RULES.items() for text in broken(history, limits)]
