"""Counts of a history."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from tests.harness.checking.claims import ClaimHistory
from tests.harness.checking.groups import FAILURES, find_cause, find_duplicates
from tests.harness.checking.history import History
from tests.harness.checking.records import ONLY_SENT, UNAVAILABLE
from tests.harness.checking.rules import LIMITS, Limits

AGAIN = "again after "
"""Prefix of the counts of messages handled again; the kind of failure that explains it follows."""


def count_messages(history: History, limits: Limits = LIMITS) -> dict[str, int]:
    """Counts messages posted and read, unless stated otherwise.

    * ``calls``: posts and reads; ``refused``: posts answered with 503; ``unanswered``: posts without an answer.
    * ``acknowledged``, ``none``, ``unknown``: by outcome; ``during_faults``: acknowledged during a fault.
    * ``none_late``: with outcome ``none`` after more than the max time of a write.
    * ``unknown_shown``: with outcome ``unknown``, and shown by the last full read.
    * ``pages``, ``shown``: pages and messages of readers that follow; ``failed_pages``: their failed reads.
    * ``full``: shown by full reads; ``seen``: shown on all pages.
    """
    posts, faults = history.posts, history.faults
    outcomes = Counter(outcome for post in posts for outcome in post.outcomes)
    following, full = ([read for read in history.reads if bool(read.final) == final] for final in (False, True))
    bodies_at_the_end = set(history.contents.get(max(history.contents, default=0), {}).values())
    unknown = [body for body, fate in history.fates.items() if fate.outcome == "unknown"]
    faulty = [post for post in posts if any(one.start <= post.start and post.end <= one.end for one in faults)]
    late = [post for post in posts if "none" in post.outcomes and post.end - post.start > limits.deadline]
    return {
        "calls": len(posts) + len(history.reads),
        "acknowledged": outcomes["acknowledged"],
        "during_faults": sum(len(post.ids) for post in faulty),
        "none": outcomes["none"],
        "none_late": sum(len(post.sent) for post in late),
        "unknown": outcomes["unknown"],
        "unknown_shown": sum(body in bodies_at_the_end for body in unknown),
        "refused": sum(post.status == UNAVAILABLE for post in posts),
        "unanswered": sum(post.status == ONLY_SENT for post in posts),
        "pages": sum(bool(read.next) for read in following),
        "shown": sum(len(read.shown) for read in following),
        "failed_pages": sum(not read.next for read in following),
        "full": sum(len(read.shown) for read in full),
        "seen": sum(len(read.shown) for read in history.reads),
    }


def count_claims(history: ClaimHistory, posts: History) -> dict[str, int]:
    """Counts claims.

    * ``delivered``: deliveries; ``again``: messages delivered more than once.
    * ``acknowledgements``: by the outcome that the client was told.
    """
    outcomes = Counter(one.outcome or "unheard" for one in history.acknowledgements)
    positions = Counter(one.position for one in history.deliveries)
    return {
        "calls": len(posts.posts) + len(history.deliveries) + len(history.acknowledgements),
        "acknowledged": len(posts.acknowledged),
        "delivered": len(history.deliveries),
        "again": sum(times > 1 for times in positions.values()),
        "acknowledgements done": outcomes["done"],
        **{f"acknowledgements {outcome}": times for outcome, times in sorted(outcomes.items())},
        "faults": len(posts.faults),
    }


def count_groups(history: History, limits: Limits = LIMITS) -> dict[str, int]:
    """Counts what a group did.

    * ``calls``: calls of sessions; ``acknowledged``: messages; ``unknown``: messages that may be stored or not.
    * ``messages``: messages at the end; ``handled``: handlings; ``twice``: repeated handlings.
    * ``workers``: processes, of which some ``ended`` by themselves or when told; ``lives``: their sessions; ``shaken``:
      sessions suspended or lost; ``events``: faults, including workers that only come and leave; ``failures``: faults
      that break something.
    * ``stays``: assignments of a partition to a worker; ``lost``: partitions lost instead of handed back.
    * ``commits``, ``refused``, ``doubtful``: commits per partition: recorded, refused, or of unknown effect.
    * ``stalls``: times when a process was kept from running by something else.
    * ``pause``: the longest time between two handlings of one partition, in milliseconds.
    """
    commits = [call for call in history.calls if call.asked.what == "commit"]
    results = [version for call in commits if call.answer for version in call.answer.versions.values()]
    causes = [find_cause(history, first, again, limits) for first, again in find_duplicates(history)]
    stalls = sum(fault.kind == "stall" for fault in history.faults)
    handled: dict[str, list[float]] = defaultdict(list)
    for each in history.handled:
        handled[each.place].append(each.at)
    pauses = [after - before for times in handled.values() for before, after in pairwise(times)]
    return {
        "calls": len(history.calls) + sum(history.release_counts.values()),
        "acknowledged": len(history.acknowledged),
        "unknown": sum(fate.outcome == "unknown" for fate in history.fates.values()),
        "messages": sum(map(len, history.last_ids.values())),
        "handled": len(history.handled),
        "twice": len(causes),
        **Counter(AGAIN + (cause.kind if cause else "nothing") for cause in causes),
        "workers": len({joined.worker for joined in history.joined}),
        "lives": len(history.joined),
        "ended": len(history.ended),
        "shaken": sum(heard.event != "connected" for heard in history.heard),
        "events": len(history.faults) - stalls,
        "failures": sum(fault.kind in FAILURES for fault in history.faults) - stalls,
        "stays": len(history.every_stay),
        "lost": sum(stay.how == "lost" for stay in history.every_stay),
        "commits": sum(version is not None for version in results),
        "refused": sum(version is None for version in results),
        "doubtful": sum(len(call.asked.ids) for call in commits if not call.known),
        "stalls": stalls,
        "pause": round(1000 * max(pauses, default=0.0)),
    }
