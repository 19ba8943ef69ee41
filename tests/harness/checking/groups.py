"""The rules for groups whose workers handle messages and commit offsets.

A rule yields a text for each violation of its docstring.
"""

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
"""Failures after which a worker goes on for a moment although its session is over."""
FAILURES: frozenset[str] = SERVICE | SILENT | {"kill", "silence"}

MAX_JOIN_SECONDS = 30.0
"""Max seconds until a worker that cannot join its group gives up and ends."""


def _is_excused(history: History, worker: str, kinds: frozenset[str], at: float, late: float) -> bool:
    """Returns whether such a failure of the worker lasted at this time, or ended less than ``late`` seconds before."""
    return any(
        fault.target == worker and fault.kind in kinds and fault.touches(at, at, late) for fault in history.faults
    )


def _affects_all(fault: Fault) -> bool:
    return fault.kind in SERVICE or (fault.kind in STOPS and not fault.target)


def _find_told_times(history: History) -> dict[str, float]:
    return {ended.worker: ended.told for ended in history.ended if ended.told is not None}


# Messages


def lost(history: History, limits: Limits) -> Texts:
    """Every acknowledged message exists in the end, and every message that exists in the end was handled."""
    if not history.contents:
        yield "nobody has read what is there in the end"
    yield from messages.lost(history, limits)
    handled = {(handling.place, handling.id): handling.body for handling in history.handled}
    for content in history.contents.values():
        for place, body in content.items():
            if handled.get((place.name, place.id)) != body:
                yield f"{body} ({place.name} {place.id}) was never handled"


def _number_messages(history: History) -> dict[str, dict[str, int]]:
    return {place: {name: number for number, name in enumerate(names)} for place, names in history.last_ids.items()}


def order(history: History, _: Limits) -> Texts:
    """A message is first handled only after all messages before it in its partition, and exists in the end."""
    numbers = _number_messages(history)
    next_numbers: dict[str, int] = defaultdict(int)
    for handled in history.handled:
        number = numbers.get(handled.place, {}).get(handled.id)
        if number is None:
            yield f"nobody posted {_describe(handled)}"
        elif number > next_numbers[handled.place]:
            yield f"{number - next_numbers[handled.place]} before it were not handled: {_describe(handled)}"
        elif number == next_numbers[handled.place]:
            next_numbers[handled.place] += 1


def stay(history: History, _: Limits) -> Texts:
    """A worker handles the messages of its partition once, in order and without a gap, from the recorded offset on."""
    numbers = _number_messages(history)
    yield from (f"not the worker's partition: {_describe(handled)}" for handled in history.strays)
    for stay_ in history.every_stay:
        numbers_by_id = numbers.get(stay_.place, {})
        number = -1 if stay_.offset is None else numbers_by_id.get(stay_.offset, -1)
        for handled in stay_.handled:
            handled_number = numbers_by_id.get(handled.id, -1)
            if handled_number != number + 1:
                yield f"number {handled_number} after {number} of a stay since {stay_.start:.3f}: {_describe(handled)}"
            number = handled_number


# Owners


def alone(history: History, limits: Limits) -> Texts:
    """A worker does not begin messages of a partition that another session has taken since.

    A worker that was stopped, or was told late, may do so for a moment.
    """
    takings = _versions_by_place(call for call in history.calls if call.asked.what == "take")
    for stay_ in history.every_stay:
        later = (
            call for version, call in takings[stay_.place] if version > stay_.version and call.owner[0] != stay_.worker
        )
        since = min((call.end for call in later), default=NEVER)
        for handled in (handled for handled in stay_.handled if handled.at > since):
            is_stopped = _is_excused(history, stay_.worker, STOPS | {"kill"}, handled.at, limits.late)
            if not is_stopped and not _is_excused(
                history, stay_.worker, frozenset({"expire"}), handled.at, limits.unaware
            ):
                yield f"{handled.at - since:.3f} s after another took it: {_describe(handled)}"


def halted(history: History, limits: Limits) -> Texts:
    """A worker begins no message while its session is suspended or lost, or after it handed the partition back."""
    for stay_, handled, since, why in _find_begun_after_halt(history, limits):
        if not _is_excused(history, stay_.worker, STOPS, handled.at, limits.reaction):
            yield f"{handled.at - since:.3f} s after {why}: {_describe(handled)}"


def _find_begun_after_halt(history: History, limits: Limits) -> Iterator[tuple[Stay, Handled, float, str]]:
    """Yields messages begun after a stay or session had ended, with the time and reason of that end."""
    states: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for heard in history.heard:
        states[heard.worker].append((heard.at, heard.event))
    for joined in history.joined:
        if joined.life > 1:  # the end of the former session may never have been reported
            states[joined.worker].append((joined.at, "connected"))
    for events in states.values():
        events.sort()
    for stay_ in history.every_stay:
        worker_states = states[stay_.worker]
        for handled in stay_.handled:
            if stay_.end < handled.at - (limits.reaction if stay_.how == "lost" else 0.0):
                yield stay_, handled, stay_.end, f"it was {stay_.how}"
            index = bisect_right(worker_states, (handled.at, "")) - 1
            since, event = worker_states[index] if index >= 0 else (handled.at, "connected")
            if event == "connected" or (event == "lost" and since < stay_.start):
                continue
            if handled.at - since > limits.reaction:
                yield stay_, handled, since, f"its session was {event}"


def _versions_by_place(calls: Iterable[Call]) -> dict[str, list[tuple[int, Call]]]:
    made: dict[str, list[tuple[int, Call]]] = defaultdict(list)
    for call in calls:
        for place in call.asked.versions:
            version = call.version(place)
            if version is not None:
                made[place].append((version, call))
    for pairs in made.values():
        pairs.sort(key=lambda pair: pair[0])
    return made


def fenced(history: History, limits: Limits) -> Texts:
    """A session does not commit for a partition that another session has taken.

    Every version of an offset was made by one take, one commit or one release, unless versions are epochs.
    """
    in_doubt = history.release_counts.copy()  # a release makes a version in ZooKeeper, but not in a file
    for call in history.calls:
        for place in call.asked.versions:
            in_doubt[place] += not call.known
    for place, made in _versions_by_place(history.calls).items():
        yield from _find_foreign_commits(place, [call for _, call in made])
        if not limits.epochs:
            yield from _find_disorder(place, made, in_doubt[place])


def _find_foreign_commits(place: str, made: Sequence[Call]) -> Texts:
    """Yields commits by another session than the last one that took the place."""
    owner: Call | None = None
    for call in made:
        if call.asked.what == "take":
            owner = call
        elif owner is None or call.owner != owner.owner:
            yield f"{_describe_call(call, place)}; taken before by {owner and _describe_call(owner, place)}"


def _find_disorder(place: str, made: Sequence[tuple[int, Call]], in_doubt: int) -> Texts:
    """Yields versions made twice, by no known call, or not in the order of time."""
    for (earlier, before), (later, after) in pairwise(made):
        if earlier == later:
            yield f"one version twice: {_describe_call(before, place)}; {_describe_call(after, place)}"
        if after.end < before.asked.at:
            yield f"versions went back: {_describe_call(after, place)}; {_describe_call(before, place)}"
    gaps = made[-1][0] - made[0][0] + 1 - len({version for version, _ in made})
    if gaps > in_doubt:
        yield f"{gaps} versions of {place} were made by nobody known"


# Offsets


def back(history: History, limits: Limits) -> Texts:
    """Offsets never go back, neither as committed nor as observed from outside.

    Each owner goes on at the last committed offset.
    """
    doubtful = {
        place
        for call in history.calls
        for place in call.asked.versions
        # A commit by epoch is repeated if its answer was lost, and may be refused although it was recorded.
        if not call.known or (limits.epochs and call.asked.what == "commit" and call.version(place) is None)
    }
    for place, made in _versions_by_place(history.calls).items():
        last: tuple[int, str] | None = None
        for version, call in made:
            offset = call.asked.ids.get(place)
            if call.asked.what == "take":
                offset = call.answer.ids.get(place) if call.answer else None
                # A version in between was made by a release or by an unknown call. Epochs do not count commits.
                between = 0 if last is None or limits.epochs else version - last[0] - 1
                is_sure = place not in doubtful if limits.epochs else between <= (place not in doubtful)
                if last is not None and is_sure and offset != last[1]:
                    yield f"goes on at {offset}, not at {last[1]}: {_describe_call(call, place)}"
            identifier = offset or (last and last[1])
            if last is not None and is_before(identifier, last[1]):
                yield f"{identifier} after {last[1]}: {_describe_call(call, place)}"
            if identifier is not None:
                last = version, identifier
    last_observed: dict[str, str] = {}
    for observed in history.observed:
        for place, before in last_observed.items():
            if is_before(now := observed.offsets.get(place), before):
                yield f"{place} was seen at {before}, and at {now} at {observed.end:.3f}"
        last_observed |= observed.offsets


def is_before(identifier: str | None, other: str) -> bool:
    """Returns whether an id is below another; None is below all."""
    return identifier is None or order_of(identifier) < order_of(other)


def ahead(history: History, _: Limits) -> Texts:
    """A commit only records messages that were handled."""
    stays: dict[tuple[str, str], list[tuple[float, dict[str, float]]]] = defaultdict(list)
    for stay_ in history.every_stay:
        stays[stay_.worker, stay_.place].append((stay_.start, {handled.id: handled.at for handled in stay_.handled}))
    for call in history.calls:
        for place, identifier in call.asked.ids.items():
            handled_at = [handled for start, handled in stays[call.asked.worker, place] if start <= call.asked.at]
            if not handled_at or handled_at[-1].get(identifier, NEVER) > call.asked.at:
                yield f"commits {identifier}, which it has not handled: {_describe_call(call, place)}"


# Failures


def find_duplicates(history: History) -> Iterator[tuple[Handled, Handled]]:
    last: dict[tuple[str, str], Handled] = {}
    for handled in history.handled:
        key = handled.place, handled.id
        if key in last:
            yield last[key], handled
        last[key] = handled


def twice(history: History, limits: Limits) -> Texts:
    """A message is handled twice only after a failure that explains it."""
    for first, again in find_duplicates(history):
        if find_cause(history, first, again, limits) is None:
            yield f"nothing explains it: {_describe(first)}; {_describe(again)}"


def find_cause(history: History, first: Handled, again: Handled, limits: Limits) -> Fault | None:
    """Returns the narrowest failure that explains why a message was handled again, or None.

    A failure of one worker is narrower than one of all; stalls explain least.
    """
    causes = [fault for fault in history.faults if _explains(fault, first, again, limits)]
    return max(causes, key=lambda fault: (fault.kind != "stall", bool(fault.target), fault.start), default=None)


def _explains(fault: Fault, first: Handled, again: Handled, limits: Limits) -> bool:
    """Returns whether a failure hit the first worker before it recorded the message, or the second, which came late."""
    if _affects_all(fault):
        return fault.touches(first.at, again.at, limits.recovery)
    kinds = FAILURES if fault.target == first.worker else SILENT if fault.target == again.worker else frozenset()
    late = limits.unaware if fault.kind == "expire" else limits.late
    return fault.kind in kinds and fault.touches(first.at, again.at, late)


def shaken(history: History, limits: Limits) -> Texts:
    """Sessions are suspended or lost only after a failure that explains it, or after the worker was told to leave."""
    leaving = _find_told_times(history)
    for heard in history.heard:
        if heard.event != "connected" and leaving.get(heard.worker, NEVER) > heard.at:
            shared = [fault for fault in history.faults if _affects_all(fault)]
            own = [fault for fault in history.faults if fault.kind in FAILURES and fault.target == heard.worker]
            if not any(fault.touches(heard.at, heard.at, limits.recovery) for fault in (*shared, *own)):
                yield f"{heard.worker} is {heard.event} at {heard.at:.3f} for no reason"


# Moves and ends


def moved(history: History, limits: Limits) -> Texts:
    """A partition is handed back by a worker that stays only around the time at which another worker joined.

    Without failures it goes to that worker.
    """
    calm = not any(fault.kind in FAILURES and not _is_harmless(fault, limits) for fault in history.faults)
    came = [joined.at for joined in history.joined]
    leaving = _find_told_times(history)
    for place, stays in history.stays.items():
        for stay_, next_stay in pairwise(stays):
            if stay_.how != "revoked" or leaving.get(stay_.worker, NEVER) < stay_.end:
                continue
            since = stay_.start - limits.settling
            if calm:
                came = [joined.at for joined in history.joined if joined.worker == next_stay.worker != stay_.worker]
            if not any(since < at < stay_.end + limits.settling for at in came):
                yield f"{place} went from {stay_.worker} to {next_stay.worker} at {stay_.end:.3f}"


def _is_harmless(fault: Fault, limits: Limits) -> bool:
    """Returns whether a process stood still too briefly for its session to end."""
    return fault.kind in STOPS and fault.end - fault.start < limits.unaware / 2


def end(history: History, limits: Limits) -> Texts:
    """Workers told to leave exit cleanly, and others do not exit without a reason.

    In the end the offsets are those of the last messages.
    """
    joined = {worker_joined.worker for worker_joined in history.joined}
    for ended in history.ended:
        since = ended.at - MAX_JOIN_SECONDS if ended.told is None else ended.told
        failures = [fault for fault in history.faults if fault.kind in FAILURES and fault.target in {"", ended.worker}]
        is_orderly = disturbed = any(fault.touches(since, ended.at, limits.recovery) for fault in failures)
        if ended.told is not None:
            # A worker that is told before it handles signals ends with SIGTERM. One that lost its session while it
            # finished its messages exits with UNFINISHED: these are handled again.
            is_orderly = ended.code == 0 or (ended.code == -SIGTERM and ended.worker not in joined)
            is_orderly = is_orderly or (ended.code == ExitCode.UNFINISHED and disturbed)
        if not is_orderly:
            yield f"{ended.worker} ended with {ended.code} at {ended.at:.3f}, told at {ended.told}"
    last = history.observed[-1].offsets if history.observed else {}
    for place, names in history.last_ids.items():
        if last.get(place) != names[-1]:
            yield f"{place} is at {last.get(place)}, the last message is {names[-1]}"


def _describe(handled: Handled) -> str:
    return f"{handled.worker} handled {handled.body} ({handled.place} {handled.id}) at {handled.at:.3f}"


def _describe_call(call: Call, place: str) -> str:
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
