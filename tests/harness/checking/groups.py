"""The rules of groups whose workers handle messages and commit offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from signal import SIGTERM

from qdo.worker.failure import ExitCode
from queuey.client import order_of
from tests.harness.checking import messages
from tests.harness.checking.history import NEVER, Call, History, Stay
from tests.harness.checking.records import Handled
from tests.harness.checking.rules import Limits, Rules, Texts
from tests.harness.history import Fault

SERVICE: frozenset[str] = frozenset({"cut", "leader", "hush", "restart", "node-kill", "node-pause"})
STOPS: frozenset[str] = frozenset({"pause", "stall"})
SILENT: frozenset[str] = STOPS | {"expire"}
"""After which a worker goes on for a moment although its session is over."""
FAILURES: frozenset[str] = SERVICE | SILENT | {"kill", "silence"}

GIVING_UP = 30.0
"""Seconds after which a worker at the latest ends that cannot join its group."""


def _excused(history: History, worker: str, kinds: frozenset[str], at: float, late: float) -> bool:
    """Tells whether a worker could not know better at an instant, on account of a failure that is just over."""
    return any(
        fault.target == worker and fault.kind in kinds and fault.touches(at, at, late) for fault in history.faults
    )


def _hits_all(fault: Fault) -> bool:
    return fault.kind in SERVICE or (fault.kind in STOPS and not fault.target)


def _leaving(history: History) -> dict[str, float]:
    """Returns when workers were told to leave."""
    return {ended.worker: ended.told for ended in history.ended if ended.told is not None}


# Messages


def lost(history: History, limits: Limits) -> Texts:
    """Every message that was acknowledged is there, and every one that is there in the end was handled."""
    if not history.contents:
        yield "nobody has read what is there in the end"
    yield from messages.lost(history, limits)
    handled = {(each.place, each.id): each.body for each in history.handled}
    for found in history.contents.values():
        for place, body in found.items():
            if handled.get((place.name, place.id)) != body:
                yield f"{body} ({place.name} {place.id}) was never handled"


def _numbers(history: History) -> dict[str, dict[str, int]]:
    """Returns by place and id the number of each message, from 0 on."""
    return {place: {name: number for number, name in enumerate(names)} for place, names in history.last.items()}


def order(history: History, _: Limits) -> Texts:
    """A message is handled for the first time only after all before it in its partition."""
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


def stay(history: History, _: Limits) -> Texts:
    """A worker handles the messages of its partition in order, without a gap, from the recorded offset on, once."""
    numbers = _numbers(history)
    yield from (f"not the worker's partition: {_told(each)}" for each in history.strays)
    for one in history.every_stay:
        known = numbers.get(one.place, {})
        number = -1 if one.offset is None else known.get(one.offset, -1)
        for each in one.handled:
            found = known.get(each.id, -1)
            if found != number + 1:
                yield f"number {found} after {number} of a stay since {one.start:.3f}: {_told(each)}"
            number = found


# Owners


def alone(history: History, limits: Limits) -> Texts:
    """Nobody begins a message of a partition that another session has taken since.

    A worker that was stopped, or was told late, may for a moment.
    """
    takings = _made(call for call in history.calls if call.asked.what == "take")
    for one in history.every_stay:
        later = (call for version, call in takings[one.place] if version > one.version and call.owner[0] != one.worker)
        since = min((call.end for call in later), default=NEVER)
        for each in (each for each in one.handled if each.at > since):
            stopped = _excused(history, one.worker, STOPS | {"kill"}, each.at, limits.late)
            if not stopped and not _excused(history, one.worker, frozenset({"expire"}), each.at, limits.unaware):
                yield f"{each.at - since:.3f} s after another took it: {_told(each)}"


def halted(history: History, limits: Limits) -> Texts:
    """Nobody begins a message while its session is suspended, or after it was lost or the partition handed back."""
    for one, each, since, why in _begun_after_a_halt(history, limits):
        if not _excused(history, one.worker, STOPS, each.at, limits.reaction):
            yield f"{each.at - since:.3f} s after {why}: {_told(each)}"


def _begun_after_a_halt(history: History, limits: Limits) -> Iterator[tuple[Stay, Handled, float, str]]:
    """Yields what was handled although somebody was to stop, with when and why."""
    states: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for heard in history.heard:
        states[heard.worker].append((heard.at, heard.event))
    for joined in history.joined:
        if joined.life > 1:  # and nobody need have been told of the former one's end
            states[joined.worker].append((joined.at, "connected"))
    for found in states.values():
        found.sort()
    for one in history.every_stay:
        mine = states[one.worker]
        for each in one.handled:
            if one.end < each.at - (limits.reaction if one.how == "lost" else 0.0):
                yield one, each, one.end, f"it was {one.how}"
            at = bisect_right(mine, (each.at, "")) - 1
            since, event = mine[at] if at >= 0 else (each.at, "connected")
            if event == "connected" or (event == "lost" and since < one.start):
                continue
            if each.at - since > limits.reaction:
                yield one, each, since, f"its session was {event}"


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


def fenced(history: History, limits: Limits) -> Texts:
    """Nobody commits for a partition that another session has taken.

    Every version of an offset was made by one taking, one commit or one release, unless versions are epochs.
    """
    in_doubt = history.released.copy()  # a release makes a version with ZooKeeper and none in a file
    for call in history.calls:
        for place in call.asked.versions:
            in_doubt[place] += not call.known
    for place, made in _made(history.calls).items():
        yield from _foreign(place, [call for _, call in made])
        if not limits.epochs:
            yield from _disordered(place, made, in_doubt[place])


def _foreign(place: str, made: Sequence[Call]) -> Texts:
    """Tells of commits by another session than the one that has taken the place last."""
    owner: Call | None = None
    for call in made:
        if call.asked.what == "take":
            owner = call
        elif owner is None or call.owner != owner.owner:
            yield f"{_call(call, place)}; taken before by {owner and _call(owner, place)}"


def _disordered(place: str, made: Sequence[tuple[int, Call]], in_doubt: int) -> Texts:
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


def back(history: History, limits: Limits) -> Texts:
    """Offsets never go back, neither as they were committed nor as seen from outside.

    Each owner goes on where the last one was.
    """
    doubtful = {
        place
        for call in history.calls
        for place in call.asked.versions
        # A commit by epoch that is repeated, because its answer was lost, may be refused when it was recorded before.
        if not call.known or (limits.epochs and call.asked.what == "commit" and call.version(place) is None)
    }
    for place, made in _made(history.calls).items():
        last: tuple[int, str] | None = None
        for version, call in made:
            found = call.asked.ids.get(place)
            if call.asked.what == "take":
                found = call.answer.ids.get(place) if call.answer else None
                # A version between was made by a release, or by what nobody knows of. Epochs do not tell of commits.
                between = 0 if last is None or limits.epochs else version - last[0] - 1
                is_sure = place not in doubtful if limits.epochs else between <= (place not in doubtful)
                if last is not None and is_sure and found != last[1]:
                    yield f"goes on at {found}, not at {last[1]}: {_call(call, place)}"
            identifier = found or (last and last[1])
            if last is not None and is_before(identifier, last[1]):
                yield f"{identifier} after {last[1]}: {_call(call, place)}"
            if identifier is not None:
                last = version, identifier
    seen: dict[str, str] = {}
    for observed in history.observed:
        for place, before in seen.items():
            if is_before(now := observed.offsets.get(place), before):
                yield f"{place} was seen at {before}, and at {now} at {observed.end:.3f}"
        seen |= observed.offsets


def is_before(identifier: str | None, other: str) -> bool:
    """Returns whether an offset that was at another identifier has gone back to this one."""
    return identifier is None or order_of(identifier) < order_of(other)


def ahead(history: History, _: Limits) -> Texts:
    """A commit does not run ahead of what was handled."""
    stays: dict[tuple[str, str], list[tuple[float, dict[str, float]]]] = defaultdict(list)
    for one in history.every_stay:
        stays[one.worker, one.place].append((one.start, {each.id: each.at for each in one.handled}))
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


def twice(history: History, limits: Limits) -> Texts:
    """Messages are handled twice only after a failure that explains it."""
    for first, again in duplicates(history):
        if cause_of(history, first, again, limits) is None:
            yield f"nothing explains it: {_told(first)}; {_told(again)}"


def cause_of(history: History, first: Handled, again: Handled, limits: Limits) -> Fault | None:
    """Returns a failure that explains that a message was handled again, if there is one: the narrowest."""
    found = [fault for fault in history.faults if _hit(fault, first, again, limits)]
    return max(found, key=lambda fault: (fault.kind != "stall", bool(fault.target), fault.start), default=None)


def _hit(fault: Fault, first: Handled, again: Handled, limits: Limits) -> bool:
    """Tells whether a failure hit whoever handled a message first before he had recorded it, or him who came late."""
    if _hits_all(fault):
        return fault.touches(first.at, again.at, limits.recovery)
    kinds = FAILURES if fault.target == first.worker else SILENT if fault.target == again.worker else frozenset()
    late = limits.unaware if fault.kind == "expire" else limits.late
    return fault.kind in kinds and fault.touches(first.at, again.at, late)


def shaken(history: History, limits: Limits) -> Texts:
    """Sessions are suspended or lost only after a failure that explains it."""
    leaving = _leaving(history)
    for heard in history.heard:
        if heard.event != "connected" and leaving.get(heard.worker, NEVER) > heard.at:
            every = [one for one in history.faults if _hits_all(one)]
            own = [one for one in history.faults if one.kind in FAILURES and one.target == heard.worker]
            if not any(fault.touches(heard.at, heard.at, limits.recovery) for fault in (*every, *own)):
                yield f"{heard.worker} is {heard.event} at {heard.at:.3f} for no reason"


# Moves and ends


def moved(history: History, limits: Limits) -> Texts:
    """A partition is taken away from a worker that stays only after another one came.

    Without failures it goes to that one.
    """
    calm = not any(fault.kind in FAILURES and not _harmless(fault, limits) for fault in history.faults)
    came = [joined.at for joined in history.joined]
    leaving = _leaving(history)
    for place, stays in history.stays.items():
        for one, after in pairwise(stays):
            if one.how != "revoked" or leaving.get(one.worker, NEVER) < one.end:
                continue
            since = one.start - limits.settling
            if calm:
                came = [joined.at for joined in history.joined if joined.worker == after.worker != one.worker]
            if not any(since < at < one.end + limits.settling for at in came):
                yield f"{place} went from {one.worker} to {after.worker} at {one.end:.3f}"


def _harmless(fault: Fault, limits: Limits) -> bool:
    """Tells whether a process stood still for too short a time for its session to end."""
    return fault.kind in STOPS and fault.end - fault.start < limits.unaware / 2


def end(history: History, limits: Limits) -> Texts:
    """Workers that are told to leave end in order, and others not by themselves without a reason.

    In the end the offsets are those of the last messages.
    """
    joined = {each.worker for each in history.joined}
    for ended in history.ended:
        since = ended.at - GIVING_UP if ended.told is None else ended.told
        mine = [one for one in history.faults if one.kind in FAILURES and one.target in {"", ended.worker}]
        well = disturbed = any(fault.touches(since, ended.at, limits.recovery) for fault in mine)
        if ended.told is not None:
            # Who was told before it listened to signals ends as every process does. Who lost its session while it
            # finished what it had in hand says that this is handled again.
            well = ended.code == 0 or (ended.code == -SIGTERM and ended.worker not in joined)
            well = well or (ended.code == ExitCode.UNFINISHED and disturbed)
        if not well:
            yield f"{ended.worker} ended with {ended.code} at {ended.at:.3f}, told at {ended.told}"
    last = history.observed[-1].offsets if history.observed else {}
    for place, names in history.last.items():
        if last.get(place) != names[-1]:
            yield f"{place} is at {last.get(place)}, the last message is {names[-1]}"


def _told(each: Handled) -> str:
    return f"{each.worker} handled {each.body} ({each.place} {each.id}) at {each.at:.3f}"


def _call(call: Call, place: str) -> str:
    asked = call.asked
    what = f"{asked.what} {asked.ids.get(place, '')}".rstrip()
    return f"{asked.worker}/{asked.life} {what} of {place} at {asked.at:.3f}, version {call.version(place)}"


GROUPS: Rules = {
    "lost": (lost, "messages"),
    "order": (order, "handled"),
    "stay": (stay, "handled"),
    "alone": (alone, "handled"),
    "halted": (halted, "handled"),
    "fenced": (fenced, "calls"),
    "back": (back, "calls"),
    "ahead": (ahead, "commits"),
    "twice": (twice, "twice"),
    "shaken": (shaken, "shaken"),
    "moved": (moved, "stays"),
    "end": (end, "ended"),
}
