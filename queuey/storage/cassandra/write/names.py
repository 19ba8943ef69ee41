"""How a named message is written, step by step; the steps themselves are given.

A name has one row, changed by compare-and-set. Its states are those of an idempotency key (:mod:`.post_keys`), and it
remembers the value before as well (``kept``)::

                   ┌──(its writer: written in time)──► done: ids are the value, kept is replaced
    done ──► pending                                      └──(kept is done away with)──► done: nothing is kept
    (or no row)    │  meanwhile kept is the value
                   ├──(its writer: failed or late)───┐
                   └──(any process, after W)─────────┴► abandoned ──(once ids are removed)──► done: kept is the value

So whatever was written is named by the row from before it is written until it has been removed, wherever processes
stop: the next one that looks at the name finds what is left to do. A value that is replaced stays in ``kept`` until
:func:`settle`, which the caller asks for when the claim log knows that it is superseded. Before that the row takes no
new value, so a row never has more than two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from queuey.errors import NameChanged, StoreBusy, StoreUnavailable
from queuey.messages import Location
from queuey.storage.cassandra.write.post_keys import (
    ROUNDS,
    KeyRow,
    PostedIds,
    Steps,
    abandoned,
    removed,
    written,
)

NOTHING = PostedIds(0, ())
"""Stands for no message."""


class NameRow(KeyRow, frozen=True):
    """The row of a name.

    Attributes:
        kept: The value before ``ids``, which counts unless the row is done.
        kept_content: Its hash.
        expires: When the row does (ticks): not before one of its values.
    """

    final: ClassVar[bool] = False
    kept: PostedIds = NOTHING
    kept_content: bytes = b""
    expires: int = 0


class Found(NamedTuple):
    """The present value of a name. ``busy``: seconds for which somebody else may be writing a value."""

    row: NameRow | None
    busy: float = 0.0

    @property
    def value(self) -> tuple[Location | None, bytes]:
        """The value that counts, and its hash."""
        row = self.row
        if row is None:
            return None, b""
        return (location_of(row.ids), row.content) if row.state == "done" else (location_of(row.kept), row.kept_content)

    def shows(self, location: Location) -> bool | None:
        """Returns whether readers by time are shown a message; None: it may become the value yet."""
        if self.row is None or self.value[0] == location:
            return True
        return None if self.busy and location_of(self.row.ids) == location else False

    @property
    def replaced(self) -> Location | None:
        return location_of(self.row.kept) if self.row is not None and self.row.state == "done" else None


def location_of(ids: PostedIds) -> Location | None:
    return ids.locations[0] if ids.runs else None


async def find(steps: Steps, name: str, new_version: Callable[[], int]) -> Found:
    """Looks at a name. What a process has left half done, and nobody can confirm any more, is removed."""
    row: NameRow | None = await steps.read()
    for _ in range(ROUNDS):
        if row is None or row.state == "done":
            return Found(row)
        if row.state == "pending":
            if (left := await steps.time_left(row.ids)) > 0:
                return Found(row, left)
            row = await steps.swap(row, abandoned(row, new_version()))
            continue
        await removed(steps, row.ids)
        row = await steps.swap(row, _restored(row, new_version()))
    raise StoreBusy(f'Too many concurrent changes of name "{name}". Try again.')


async def find_shown(steps: Steps, name: str, new_version: Callable[[], int]) -> Found:
    """Looks at a name for readers by time: the value before is removed before the one that counts is shown."""
    found = await find(steps, name, new_version)
    if found.row is not None and found.row.state == "done":
        await _without_kept(steps, found.row)
    return found


async def write(
    steps: Steps, name: str, seen: NameRow | None, content: bytes, expires: int, new_version: Callable[[], int]
) -> NameRow:
    """Writes a new value. Ends when the one before is removed, too."""
    made = await steps.make_ids()
    before = _none_kept(seen, new_version())
    mine = NameRow(
        "pending",
        content,
        made.ids,
        before.version,
        kept=before.ids,
        kept_content=before.content,
        expires=max(expires, before.expires),
    )
    if await steps.swap(seen, mine) != mine:
        raise NameChanged(name)
    done = await written(steps, mine, made, new_version)
    if done.state != "done" or done.ids != mine.ids:
        raise NameChanged(name)
    await _without_kept(steps, done)
    return done


async def clear(steps: Steps, name: str, seen: NameRow, new_version: Callable[[], int]) -> NameRow:
    """Removes the value of a name; otherwise as :func:`write`."""
    mine = NameRow("done", b"", NOTHING, new_version(), kept=seen.ids, kept_content=seen.content, expires=seen.expires)
    if await steps.swap(seen, mine, final=False) != mine:
        raise NameChanged(name)
    await _without_kept(steps, mine)
    return mine


async def settle(steps: Steps, seen: NameRow, new_version: Callable[[], int]) -> None:
    """Forgets the value that was replaced; nothing is done if the row has changed."""
    await steps.swap(seen, replace(seen, kept=NOTHING, kept_content=b"", version=new_version()))


def _none_kept(seen: NameRow | None, version: int) -> NameRow:
    return NameRow("done", b"", NOTHING, version) if seen is None else replace(seen, version=version)


async def _without_kept(steps: Steps, row: NameRow) -> None:
    if row.kept.runs and await steps.remove(row.kept, unseen=False) != "none":
        raise StoreUnavailable("the value that was replaced could not be removed yet", outcome="unknown")


def _restored(row: NameRow, version: int) -> NameRow:
    return NameRow("done", row.kept_content, row.kept, version, expires=row.expires)
