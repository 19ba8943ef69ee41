"""What a history amounts to in numbers, and whether that is enough to have shown anything."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tests.faults.checking.history import ONLY_SENT, Fault, History, Outcome, Post, Read

UNAVAILABLE = 503


class Counts(NamedTuple):
    """Numbers of a history; messages unless said otherwise.

    Attributes:
        refused: Posts answered with 503.
        unanswered: Posts without an answer.
        none_late, unknown_shown: Of those with outcome ``none``, how many had waited longer than a write may take; of
            those with outcome ``unknown``, how many the last full read shows.
        pages, shown: Pages read by readers that follow, and messages on them.
        failed_pages: Reads that gave none.
        during_faults: Acknowledged while something was faulty.
        faults: How many of each kind, by ``kind target``.
    """

    acknowledged: int
    none: int
    unknown: int
    refused: int
    unanswered: int
    none_late: int
    unknown_shown: int
    pages: int
    shown: int
    failed_pages: int
    during_faults: int
    faults: dict[str, int]

    def __str__(self) -> str:
        """One line for a report."""
        faults = ", ".join(f"{count} {what}" for what, count in sorted(self.faults.items()))
        return (
            f"{self.acknowledged} messages acknowledged, {self.during_faults} of them during faults; {self.none} none, "
            f"{self.none_late} of them after the write deadline; {self.unknown} unknown, {self.unknown_shown} of them "
            f"there in the end; {self.refused} posts answered 503, {self.unanswered} not answered; {self.shown} shown "
            f"on {self.pages} pages, {self.failed_pages} reads failed; faults: {faults or 'none'}"
        )


def count(history: History, deadline: float) -> Counts:
    """Counts.

    Args:
        history: What happened.
        deadline: Seconds that a write may take (W).
    """
    outcomes: Counter[Outcome] = Counter(outcome for post in history.posts for outcome in post.outcomes)
    following = [read for read in history.reads if not read.final]
    last = max((read.final for read in history.reads), default=0)
    there = {shown.body for read in history.reads if last and read.final == last for shown in read.shown}
    return Counts(
        acknowledged=outcomes["acknowledged"],
        none=outcomes["none"],
        unknown=outcomes["unknown"],
        refused=sum(post.status == UNAVAILABLE for post in history.posts),
        unanswered=sum(post.status == ONLY_SENT for post in history.posts),
        none_late=sum(len(post.sent) for post in history.posts if _none_late(post, deadline)),
        unknown_shown=sum(
            sent.body in there
            for post in history.posts
            for sent, outcome in zip(post.sent, post.outcomes, strict=True)
            if outcome == "unknown"
        ),
        pages=sum(bool(read.next) for read in following),
        shown=sum(len(read.shown) for read in following),
        failed_pages=sum(not read.next for read in following),
        during_faults=sum(len(post.ids) for post in history.posts if _during(post, history.faults)),
        faults=dict(Counter(f"{fault.kind} {fault.target}" for fault in history.faults)),
    )


def _none_late(post: Post, deadline: float) -> bool:
    return "none" in post.outcomes and post.end - post.start > deadline


def _during(event: Post | Read, faults: tuple[Fault, ...]) -> bool:
    return any(fault.start <= event.start and event.end <= fault.end for fault in faults)


def vacuous(counts: Counts, least: dict[str, int]) -> list[str]:
    """Tells which of the numbers are too small for the run to mean anything.

    Args:
        counts: Of the run.
        least: The smallest acceptable value by attribute name.
    """
    return [
        f"{name}: {found}, not {value} or more"
        for name, value in least.items()
        if (found := getattr(counts, name)) < value
    ]
