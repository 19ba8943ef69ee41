"""How a named message is written, step by step; an implementation of :class:`.post_keys.Steps` is passed in.

A name has one row, changed by compare-and-set. It has the states of an idempotency key (:mod:`.post_keys`), and it also
keeps the previous value (``kept``)::

                   ┌──(its writer: written in time)──► done: ids are the value, kept is replaced
    done ──► pending                                      └──(kept is settled)──► done: nothing is kept
    (or no row)    │  meanwhile kept is the value
                   ├──(its writer: failed or late)───┐
                   └──(any process, after W)─────────┴► abandoned ──(once ids are removed)──► done: kept is the value

So the row names every written message from before it is written until it has been removed, wherever processes stop. The
next process that reads the name finds what is left to do. A replaced value stays in ``kept`` until
:func:`forget_replaced` is called: when the claim log knows that the value is superseded. Before that the row accepts no
new value, so a row never has more than two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from queuey.model.errors import NameChanged, StoreBusy, StoreUnavailable
from queuey.model.messages import Location
from queuey.storage.cassandra.write.post_keys import (
    MAX_ROUNDS,
    KeyRow,
    PostedIds,
    Steps,
    make_abandoned,
    remove_messages,
    write_pending,
)

NOTHING = PostedIds(0, ())
"""The ids of no message."""


class NameRow(KeyRow, frozen=True):
    """The row of a name.

    Attributes:
        kept: The previous value; it is the present one unless the row is done.
        kept_content: The hash of the previous value.
        expires: When the row expires (ticks): not before either of its values.
    """

    final: ClassVar[bool] = False
    kept: PostedIds = NOTHING
    kept_content: bytes = b""
    expires: int = 0


class Found(NamedTuple):
    """The row of a name. ``busy``: seconds for which another process may still be writing a value.

    ``replaced``: the value that the present one has replaced, if a row that is done still keeps it.
    """

    row: NameRow | None
    busy: float = 0.0

    @property
    def value(self) -> tuple[Location | None, bytes]:
        row = self.row
        if row is None:
            return None, b""
        return (location_of(row.ids), row.content) if row.state == "done" else (location_of(row.kept), row.kept_content)

    def is_shown(self, location: Location) -> bool | None:
        """Returns whether readers by time are shown a message, or None if it may still become the value."""
        if self.row is None or self.value[0] == location:
            return True
        return None if self.busy and location_of(self.row.ids) == location else False

    @property
    def replaced(self) -> Location | None:
        return location_of(self.row.kept) if self.row is not None and self.row.state == "done" else None


def location_of(ids: PostedIds) -> Location | None:
    return ids.locations[0] if ids.runs else None


async def find(steps: Steps, name: str, new_version: Callable[[], int]) -> Found:
    """Reads a name. Removes an unfinished value once W is over; before that, reports the row as busy.

    Raises StoreBusy if others keep changing it.
    """
    row: NameRow | None = await steps.read()
    for _ in range(MAX_ROUNDS):
        if row is None or row.state == "done":
            return Found(row)
        if row.state == "pending":
            if (seconds_left := await steps.time_left(row.ids)) > 0:
                return Found(row, seconds_left)
            row = await steps.swap(row, make_abandoned(row, new_version()))
            continue
        await remove_messages(steps, row.ids)
        row = await steps.swap(row, _make_restored(row, new_version()))
    raise StoreBusy(f'Too many concurrent changes of name "{name}". Try again.')


async def find_shown(steps: Steps, name: str, new_version: Callable[[], int]) -> Found:
    """Reads a name for readers by time: removes the previous value before the present one is shown."""
    present = await find(steps, name, new_version)
    if present.row is not None and present.row.state == "done":
        await _remove_kept(steps, present.row)
    return present


async def write(
    steps: Steps, name: str, seen: NameRow | None, content: bytes, expires: int, new_version: Callable[[], int]
) -> NameRow:
    """Writes a new value, then removes the previous one. Raises NameChanged if the row is not ``seen`` any more."""
    made = await steps.make_ids()
    previous = _make_previous(seen, new_version())
    pending = NameRow(
        "pending",
        content,
        made.ids,
        previous.version,
        kept=previous.ids,
        kept_content=previous.content,
        expires=max(expires, previous.expires),
    )
    if await steps.swap(seen, pending) != pending:
        raise NameChanged(name)
    done = await write_pending(steps, pending, made, new_version)
    if done.state != "done" or done.ids != pending.ids:
        raise NameChanged(name)
    await _remove_kept(steps, done)
    return done


async def clear(steps: Steps, name: str, seen: NameRow, new_version: Callable[[], int]) -> NameRow:
    empty = NameRow("done", b"", NOTHING, new_version(), kept=seen.ids, kept_content=seen.content, expires=seen.expires)
    if await steps.swap(seen, empty, final=False) != empty:
        raise NameChanged(name)
    await _remove_kept(steps, empty)
    return empty


async def forget_replaced(steps: Steps, seen: NameRow, new_version: Callable[[], int]) -> None:
    """Clears the replaced value in the row of a name. Does nothing if the row has changed since ``seen``."""
    await steps.swap(seen, replace(seen, kept=NOTHING, kept_content=b"", version=new_version()))


def _make_previous(seen: NameRow | None, version: int) -> NameRow:
    return NameRow("done", b"", NOTHING, version) if seen is None else replace(seen, version=version)


async def _remove_kept(steps: Steps, row: NameRow) -> None:
    if row.kept.runs and await steps.remove(row.kept, unseen=False) != "none":
        raise StoreUnavailable("the replaced value could not be removed yet", outcome="unknown")


def _make_restored(row: NameRow, version: int) -> NameRow:
    return NameRow("done", row.kept_content, row.kept, version, expires=row.expires)
