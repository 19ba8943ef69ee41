"""What a post with an idempotency key does, step by step; the steps themselves are given.

A key has one row, changed by compare-and-set. Its states::

                      ┌──(its writer: written in time)──► done       final until the row expires
    absent ──► pending│
                 ▲    └──(its writer: failed or late)───┐
                 │    └──(any process, after W)─────────┴► abandoned
                 └──────────(any process, once old messages are removed)──┘

``pending`` and ``abandoned`` name the ids that the messages have, or would have. Three rules make a post that is
carried out once of this:

1. Only the process that made the ids makes them ``done``, and only if the messages were written within W of their ids.
   Another one cannot know whether they were: a reader may have passed them.
2. Messages are removed only after their ids are ``abandoned``, or were found replaced: from then on no process can make
them ``done``.
3. New ids are put in the place of abandoned ones only after the removal holds at the consistency of the write. A
   write of the old ids that arrives later is older than the removal and stays without effect.

So at any time one set of ids at most is not removed for good, the one that the row names, wherever processes stop. A
post that stops leaves a ``pending`` row; the next one with the key abandons it when it is W old. Before that it may
still be carried out, and the next one is refused at once and may try again (:class:`KeyInUse`).

A change in doubt is repeated until it is applied or refused, which is safe because each demands the version that it saw
and sets a new one. If the result stays unknown, the post fails with outcome ``unknown``, and the next one meets any of
the states above.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from queuey.errors import KeyInUse, KeyReused, Outcome, StoreUnavailable, WriteUndone, in_doubt
from queuey.messages import Location, PostKey, PostResult

ROUNDS = 8
"""Max rows of other posts that a post checks before it gives up."""

State = Literal["pending", "abandoned", "done"]


class IdRun(NamedTuple):
    """Messages whose ids follow each other tick by tick, in one bucket."""

    partition: int
    kind: int
    bucket: int
    ticks: int
    low: int
    number: int


class PostedIds(msgspec.Struct, frozen=True, array_like=True):
    """The ids of a post, in the order of its messages.

    Attributes:
        made: When they were made (ticks). Ids of delayed messages lie ahead of that.
        runs: Where they are.
    """

    made: int
    runs: tuple[IdRun, ...]

    @property
    def locations(self) -> list[Location]:
        return [(run.partition, (run.ticks + n, run.low)) for run in self.runs for n in range(run.number)]


class KeyRow(msgspec.Struct, frozen=True):
    """The row of a key. ``version`` is new with each change. A row that is done is ``final`` until it expires."""

    final: ClassVar[bool] = True
    state: State
    content: bytes
    ids: PostedIds
    version: int


class MadeIds(msgspec.Struct, frozen=True):
    """Ids that this process has made, with whatever is needed to write the messages."""

    ids: PostedIds


class Steps(Protocol):
    """What a post does with its row and its messages."""

    async def read(self) -> Any:  # noqa: ANN401 - of the table
        """Returns the row that stands there, None if there is no row."""

    async def make_ids(self) -> MadeIds:
        """Makes ids, now."""

    async def swap(self, seen: KeyRow | None, row: KeyRow, *, final: bool = True) -> Any:  # noqa: ANN401 - of the table
        """Puts a row in the place of the one ``seen``; returns the row that stands there afterwards, if there is one.

        Others may change what was put there, unless it is ``final``. So if no answer came at first, and another row
        stands there now, nobody knows whether it was there; then this raises :class:`StoreUnavailable`.
        """

    async def write(self, made: MadeIds) -> None:
        """Writes the messages, all within W; raises :class:`StoreUnavailable` otherwise."""

    async def remove(self, ids: PostedIds, *, unseen: bool) -> Outcome:
        """Removes messages; returns the outcome.

        It is ``none`` if the removal holds and, for ``unseen``, no reader can have shown the messages before.
        """

    async def time_left(self, ids: PostedIds) -> float:
        """Returns the seconds until ids are W old, 0 if they are."""


R = TypeVar("R", bound=KeyRow)


async def carry_out(steps: Steps, key: PostKey, new_version: Callable[[], int]) -> PostResult:
    seen: KeyRow | None = None
    for _ in range(ROUNDS):
        if seen is not None:
            if seen.content != key.content:
                raise KeyReused(key.text)
            if seen.state == "done":
                return PostResult(seen.ids.locations, replayed=True)
            if seen.state == "pending":
                if (left := await steps.time_left(seen.ids)) > 0:
                    raise KeyInUse(key.text, max(1, round(left + 0.5)))
                seen = await steps.swap(seen, abandoned(seen, new_version()))
                continue
            await removed(steps, seen.ids)
        made = await steps.make_ids()
        mine = KeyRow("pending", key.content, made.ids, new_version())
        there = await steps.swap(seen, mine)
        if there == mine:
            done = await written(steps, mine, made, new_version)
            if done.state == "done" and done.ids == mine.ids:
                return PostResult(mine.ids.locations, replayed=False)
            there = done
        seen = there
    raise KeyInUse(key.text)


async def written(steps: Steps, mine: R, made: MadeIds, new_version: Callable[[], int]) -> R:
    """Writes the messages of a row that stands there and returns the row that does afterwards: done, or another's."""
    failure: StoreUnavailable | None = None
    try:
        await steps.write(made)
    except StoreUnavailable as error:
        failure = error
    row = abandoned(mine, new_version()) if failure else _done(mine, new_version())
    try:
        there: R | None = await steps.swap(mine, row, final=mine.final or failure is not None)
    except StoreUnavailable as error:
        raise in_doubt(failure or error) from error
    if there == row and failure is None:
        return row
    if there is None:
        raise in_doubt(failure or StoreUnavailable("what stands for it expired while it was carried out"))
    # From here on no process can make these ids done.
    outcome = await steps.remove(mine.ids, unseen=True)
    if failure is not None and there == row:
        kind = WriteUndone if outcome == "none" and failure.outcome == "unknown" else StoreUnavailable
        raise kind(str(failure), outcome=outcome, retry_after=failure.retry_after) from failure
    return there


async def removed(steps: Steps, ids: PostedIds) -> None:
    if await steps.remove(ids, unseen=False) != "none":
        raise StoreUnavailable("what an earlier post left could not be removed yet", outcome="unknown")


def abandoned(row: R, version: int) -> R:
    return msgspec.structs.replace(row, state="abandoned", version=version)


def _done(row: R, version: int) -> R:
    return msgspec.structs.replace(row, state="done", version=version)
