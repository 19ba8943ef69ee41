"""Carries out a post with an idempotency key, step by step; an implementation of :class:`Steps` is passed in.

A key has one row, changed by compare-and-set. Its states::

                      ┌──(its writer: written in time)──► done       final until the row expires
    absent ──► pending│
                 ▲    └──(its writer: failed or late)───┐
                 │    └──(any process, after W)─────────┴► abandoned
                 └──────────(any process, once old messages are removed)──┘

The rows ``pending`` and ``abandoned`` name the ids that the messages have or would have. Three rules ensure that a
post is carried out once:

1. Only the process that made the ids makes them ``done``, and only if the messages were written within W of their ids.
   Another process cannot know whether they were: a reader may have passed them.
2. Messages are removed only after their ids are ``abandoned`` or were found replaced. From then on no process can make
   them ``done``.
3. New ids replace abandoned ones only after the removal holds at the consistency of the write. A write of the old ids
   that arrives later is older than the removal and has no effect.

So at any time at most one set of ids is not removed for good, the one that the row names, wherever processes stop. A
post that stops leaves a ``pending`` row. The next post with the key abandons the row when it is W old. Before that the
first post may still be carried out, so the next one is refused at once and may try again (:class:`KeyInUse`).

A change in doubt is repeated until it is applied or refused. That is safe because each change requires the version that
it saw and sets a new one. If the result stays unknown, the post fails with outcome ``unknown``, and the next one finds
any of the states above.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from queuey.model.errors import KeyInUse, KeyReused, Outcome, StoreUnavailable, WriteUndone, in_doubt
from queuey.model.messages import Location, PostKey, PostResult

MAX_ROUNDS = 8
"""Max states of the row that a call handles before it gives up."""

State = Literal["pending", "abandoned", "done"]


class IdRun(NamedTuple):
    """Messages in one bucket whose ids have consecutive ticks.

    ``kind`` is the class of the bucket and ``bucket`` its code.
    """

    partition: int
    kind: int
    bucket: int
    ticks: int
    low: int
    number: int


class PostedIds(msgspec.Struct, frozen=True, array_like=True):
    """The ids of a post, in the order of its messages.

    Attributes:
        made: The time at which the ids were made (ticks). Ids of delayed messages are later.
        runs: The ids, by bucket.
    """

    made: int
    runs: tuple[IdRun, ...]

    @property
    def locations(self) -> list[Location]:
        return [(run.partition, (run.ticks + n, run.low)) for run in self.runs for n in range(run.number)]


class KeyRow(msgspec.Struct, frozen=True):
    """The row of a key. Each change sets a new ``version``. ``final``: a row that is done never changes again."""

    final: ClassVar[bool] = True
    state: State
    content: bytes
    ids: PostedIds
    version: int


class MadeIds(msgspec.Struct, frozen=True):
    """Ids that this process has made, with what is needed to write the messages."""

    ids: PostedIds


class Steps(Protocol):
    """The steps by which a post changes its row and its messages."""

    async def read(self) -> Any:  # noqa: ANN401 - of the table
        """Returns the present row, or None if there is no row."""

    async def make_ids(self) -> MadeIds:
        """Makes ids for the messages. Ids that were made before and not written are dropped."""

    async def swap(self, seen: KeyRow | None, row: KeyRow, *, final: bool = True) -> Any:  # noqa: ANN401 - of the table
        """Replaces the row ``seen`` by ``row``. Returns the row that is there afterwards, if there is one.

        Others may replace ``row`` unless it is ``final``. So if the first answer was lost and another row is there now,
        it is unknown whether ``row`` was written. Then this raises :class:`StoreUnavailable`.
        """

    async def write(self, made: MadeIds) -> None:
        """Writes all messages within W, or raises :class:`StoreUnavailable`."""

    async def remove(self, ids: PostedIds, *, unseen: bool) -> Outcome:
        """Removes messages and returns the outcome.

        The outcome is ``none`` if the removal holds and, with ``unseen``, no reader can have shown the messages before.
        """

    async def time_left(self, ids: PostedIds) -> float:
        """Returns the seconds until ids are W old; 0 if they are older."""


R = TypeVar("R", bound=KeyRow)


async def carry_out(steps: Steps, key: PostKey, new_version: Callable[[], int]) -> PostResult:
    """Appends messages once per key, or returns the earlier ids.

    Raises KeyReused if the key was used with other content, and KeyInUse while another post may still be carried out or
    if others keep changing the row.
    """
    seen: KeyRow | None = None
    for _ in range(MAX_ROUNDS):
        if seen is not None:
            if seen.content != key.content:
                raise KeyReused(key.text)
            if seen.state == "done":
                return PostResult(seen.ids.locations, replayed=True)
            if seen.state == "pending":
                if (seconds_left := await steps.time_left(seen.ids)) > 0:
                    raise KeyInUse(key.text, max(1, round(seconds_left + 0.5)))
                seen = await steps.swap(seen, make_abandoned(seen, new_version()))
                continue
            await remove_messages(steps, seen.ids)
        made = await steps.make_ids()
        pending = KeyRow("pending", key.content, made.ids, new_version())
        present = await steps.swap(seen, pending)
        if present == pending:
            done = await write_pending(steps, pending, made, new_version)
            if done.state == "done" and done.ids == pending.ids:
                return PostResult(pending.ids.locations, replayed=False)
            present = done
        seen = present
    raise KeyInUse(key.text)


async def write_pending(steps: Steps, mine: R, made: MadeIds, new_version: Callable[[], int]) -> R:
    """Writes the messages of the pending row ``mine``. Returns the row afterwards: done, or that of another process.

    After a failure, or if another row replaced it, removes the messages; raises the failure with its outcome.
    """
    failure: StoreUnavailable | None = None
    try:
        await steps.write(made)
    except StoreUnavailable as error:
        failure = error
    row = make_abandoned(mine, new_version()) if failure else _make_done(mine, new_version())
    try:
        present: R | None = await steps.swap(mine, row, final=mine.final or failure is not None)
    except StoreUnavailable as error:
        raise in_doubt(failure or error) from error
    if present == row and failure is None:
        return row
    if present is None:
        raise in_doubt(failure or StoreUnavailable("the row of this write expired while the messages were written"))
    # From here on no process can make these ids done.
    outcome = await steps.remove(mine.ids, unseen=True)
    if failure is not None and present == row:
        kind = WriteUndone if outcome == "none" and failure.outcome == "unknown" else StoreUnavailable
        raise kind(str(failure), outcome=outcome, retry_after=failure.retry_after) from failure
    return present


async def remove_messages(steps: Steps, ids: PostedIds) -> None:
    if await steps.remove(ids, unseen=False) != "none":
        raise StoreUnavailable("the messages of an earlier write could not be removed yet", outcome="unknown")


def make_abandoned(row: R, version: int) -> R:
    return msgspec.structs.replace(row, state="abandoned", version=version)


def _make_done(row: R, version: int) -> R:
    return msgspec.structs.replace(row, state="done", version=version)
