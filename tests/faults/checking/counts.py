"""What a history amounts to in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.faults.checking.records import ONLY_SENT, History, Outcome, Post
from tests.harness.history import Fault

UNAVAILABLE = 503
SUBJECTS = {
    "answers": "calls",
    "G1": "acknowledged",
    "lost": "acknowledged",
    "G2": "none",
    "settled": "full",
    "truth": "seen",
    "G3": "acknowledged",
    "page": "pages",
    "available": "calls",
}
"""What each rule is applied to, by its name among the counts."""


def count(history: History, deadline: float) -> dict[str, int]:
    """Counts messages, unless said otherwise.

    * ``calls``: posts and reads; ``refused``: posts answered with 503; ``unanswered``: posts without an answer.
    * ``acknowledged``, ``none``, ``unknown``: by outcome; ``during_faults``: acknowledged while something was faulty.
    * ``none_late``: of those with outcome ``none``, how many had waited longer than a write may take.
    * ``unknown_shown``: of those with outcome ``unknown``, how many the last full read shows.
    * ``pages``, ``shown``: read by readers that follow; ``failed_pages``: reads that gave none.
    * ``full``: shown on full reads; ``seen``: on all pages.

    Args:
        history: What happened.
        deadline: Seconds that a write may take (W).
    """
    outcomes: Counter[Outcome] = Counter(outcome for post in history.posts for outcome in post.outcomes)
    following = [read for read in history.reads if not read.final]
    full = [read for read in history.reads if read.final]
    last = max((read.final for read in full), default=0)
    there = {shown.body for read in full if read.final == last for shown in read.shown}
    told = [pair for post in history.posts for pair in zip(post.sent, post.outcomes, strict=True)]
    return {
        "calls": len(history.posts) + len(history.reads),
        "acknowledged": outcomes["acknowledged"],
        "during_faults": sum(len(post.ids) for post in history.posts if _during(post, history.faults)),
        "none": outcomes["none"],
        "none_late": sum(len(post.sent) for post in history.posts if _none_late(post, deadline)),
        "unknown": outcomes["unknown"],
        "unknown_shown": sum(sent.body in there for sent, outcome in told if outcome == "unknown"),
        "refused": sum(post.status == UNAVAILABLE for post in history.posts),
        "unanswered": sum(post.status == ONLY_SENT for post in history.posts),
        "pages": sum(bool(read.next) for read in following),
        "shown": sum(len(read.shown) for read in following),
        "failed_pages": sum(not read.next for read in following),
        "full": sum(len(read.shown) for read in full),
        "seen": sum(len(read.shown) for read in history.reads),
    }


def checked(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns to how many records each rule was applied: calls, messages shown, or messages by their outcome."""
    return {rule: counts[subject] for rule, subject in SUBJECTS.items()}


def _none_late(post: Post, deadline: float) -> bool:
    return "none" in post.outcomes and post.end - post.start > deadline


def _during(post: Post, faults: tuple[Fault, ...]) -> bool:
    return any(fault.start <= post.start and post.end <= fault.end for fault in faults)
