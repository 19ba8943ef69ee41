"""What a history amounts to in numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise

from tests.qdo.faults.checking.checker import RULES, Limits, cause_of, duplicates
from tests.qdo.faults.checking.history import History

AGAIN = "again after "
"""How the numbers of messages begin that were handled again, by the kind of failure that explains it."""


def count(history: History, limits: Limits = Limits()) -> dict[str, int]:  # noqa: B008 - immutable
    """Counts.

    * ``calls``: of sessions; ``acknowledged``: messages; ``unknown``: posts that may be stored or not.
    * ``messages``: that are there in the end; ``handled``: how often one was; ``twice``: how often one was again.
    * ``workers``: processes, of which some ``ended`` by themselves or when told; ``lives``: their sessions; ``shaken``:
      how often one was suspended or lost; ``events``: faults, with those that only come and leave.
    * ``stays``: how often a partition came to a worker; ``lost``: how often it was lost, instead of handed back.
    * ``commits``, ``refused``, ``doubtful``: of a partition: recorded, refused, or of unknown end.
    * ``stalls``: times when a process was kept from running by something else.
    * ``pause``: the longest time between two handlings of one partition, in milliseconds.
    """
    commits = [call for call in history.calls if call.asked.what == "commit"]
    results = [version for call in commits if call.answer for version in call.answer.versions.values()]
    causes = [cause_of(history, first, again, limits) for first, again in duplicates(history)]
    stays = [stay for stays in history.stays.values() for stay in stays]
    stalls = sum(fault.kind == "stall" for fault in history.faults)
    return {
        "calls": len(history.calls) + sum(history.released.values()),
        "acknowledged": sum(len(posted.ids) for posted in history.posted),
        "unknown": sum(not posted.ids for posted in history.posted),
        "messages": sum(map(len, history.contents.values())),
        "handled": len(history.handled),
        "twice": len(causes),
        **Counter(AGAIN + (cause.kind if cause else "nothing") for cause in causes),
        "workers": len({joined.worker for joined in history.joined}),
        "lives": len(history.joined),
        "ended": len(history.ended),
        "shaken": sum(heard.event != "connected" for heard in history.heard),
        "events": len(history.faults) - stalls,
        "stays": len(stays),
        "lost": sum(stay.how == "lost" for stay in stays),
        "commits": sum(version is not None for version in results),
        "refused": sum(version is None for version in results),
        "doubtful": sum(len(call.asked.ids) for call in commits if not call.known),
        "stalls": stalls,
        "pause": round(1000 * max(_pauses(history), default=0.0)),
    }


def checked(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns to how many records each rule was applied."""
    return {rule: counts[subject] for rule, (_, subject) in RULES.items()}


def _pauses(history: History) -> list[float]:
    """Returns all times between two handlings of a partition, in seconds."""
    handled: dict[str, list[float]] = defaultdict(list)
    for each in history.handled:
        handled[each.place].append(each.at)
    return [after - before for times in handled.values() for before, after in pairwise(times)]
