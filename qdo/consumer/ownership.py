"""What the group tells a consumer: which partitions are its own from now on, and which no longer.

Per partition ``on_assign`` comes first and is over before anything is read, then either ``on_revoke``, which may still
commit, or ``on_lost``, or both when the session ends in the middle of a revocation. Callbacks for different partitions
may run side by side. An exception in one of them is logged; the partitions go where the group says all the same.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from qdo.consumer.fetcher import Fetcher
from qdo.consumer.shelf import Shelf
from qdo.consumer.tracks import Track
from qdo.coordination import Held
from qdo.partitions import Partition

log = logging.getLogger("qdo.consumer")

Callback = Callable[[frozenset[Partition]], Awaitable[None] | None]


class Callbacks(NamedTuple):
    """What the user of a consumer wants to be told; each may be a coroutine function or a plain one.

    The last two are plain functions: nothing is handed out from ``on_suspend`` on, since nobody can tell whether the
    partitions are still this member's, until ``on_resume``.
    """

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None
    on_suspend: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None


class Ownership:
    """Keeps the tracks of the partitions that are this member's.

    Args:
        shelf: Where messages are held.
        fetcher: Reads ahead.
        callbacks: Of the user.
        begin: Finds out where to begin for partitions of which nothing is recorded, and calls :meth:`begin_at`; None:
            they begin at the beginning.
        leaving: Awaited when a revocation has been told, before the partitions are released.
        changed: Called when partitions can be handed out that could not.

    Attributes:
        tracks: By partition, those included that are being revoked.
        stopped: Nothing may be handed out now.
    """

    def __init__(
        self,
        shelf: Shelf,
        fetcher: Fetcher,
        callbacks: Callbacks,
        *,
        begin: Callable[[list[Track]], Awaitable[None]] | None,
        leaving: Callable[[frozenset[Partition]], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self.tracks: dict[Partition, Track] = {}
        self.stopped = False
        self._shelf = shelf
        self._fetcher = fetcher
        self._callbacks = [callbacks]
        self._begin = begin
        self._leaving = leaving
        self._changed = changed
        self._assigning: dict[Partition, asyncio.Event] = {}
        self._beginning: set[asyncio.Future[None]] = set()

    def attach(self, callbacks: Callbacks) -> None:
        """Has somebody else told too, before those who are told already."""
        self._callbacks.insert(0, callbacks)

    async def assigned(self, held: Mapping[Partition, Held]) -> None:
        """Takes partitions over: tells the user, then begins to read them."""
        tracks = {partition: Track(partition, each.offset.id) for partition, each in held.items()}
        for partition, track in tracks.items():
            self._stop(self.tracks.get(partition))
            self.tracks[partition] = track
            if track.committed is not None or self._begin is None:
                track.place(track.committed)
        told = asyncio.Event()
        self._assigning |= dict.fromkeys(tracks, told)
        try:
            for each in self._callbacks:
                await _tell(each.on_assign, frozenset(tracks))
        finally:
            told.set()
            for partition in tracks:
                if self._assigning.get(partition) is told:
                    del self._assigning[partition]
        self._open(track for track in tracks.values() if not track.closed)

    async def revoke(self, partitions: frozenset[Partition]) -> None:
        """Stops partitions, tells the user, and forgets them; afterwards they may be released."""
        tracks = self._close(partitions)
        try:
            await self._assignments(partitions)
            for each in self._callbacks:
                await _tell(each.on_revoke, partitions)
            await self._leaving(partitions)
        finally:
            self._forget(tracks)

    async def lost(self, partitions: frozenset[Partition]) -> None:
        """Forgets partitions that are somebody else's by now, and tells the user."""
        self._forget(self._close(partitions))
        await self._assignments(partitions)
        for each in self._callbacks:
            await _tell(each.on_lost, partitions)

    def suspended(self) -> None:
        """Hands out nothing until it is resumed: nobody can tell whether the partitions are still this member's."""
        self.stopped = True
        for each in self._callbacks:
            if each.on_suspend is not None:
                each.on_suspend()

    def resumed(self) -> None:
        """Goes on."""
        self.stopped = False
        self._changed()
        for each in self._callbacks:
            if each.on_resume is not None:
                each.on_resume()

    def begin_at(self, track: Track, position: str) -> None:
        """Begins to read a partition at a point, unless the user has chosen another one meanwhile."""
        if track.closed or track.since is not None:
            return
        track.place(position)
        self._open([track])

    def moved(self, track: Track) -> None:
        """Reads a partition from where it was placed by the user, unless he is still being told of it."""
        if track.partition not in self._assigning:
            self._open([track])

    async def close(self) -> None:
        """Stops looking for where to begin."""
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _open(self, tracks: Iterable[Track]) -> None:
        unplaced = []
        for track in tracks:
            if track.since is None:
                unplaced.append(track)
            elif not track.opened:
                track.opened = True
                self._fetcher.add(track)
        if unplaced and self._begin is not None:
            task = asyncio.ensure_future(self._begin(unplaced))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        self._changed()

    def _close(self, partitions: Iterable[Partition]) -> dict[Partition, Track]:
        tracks = {partition: self.tracks[partition] for partition in partitions if partition in self.tracks}
        for track in tracks.values():
            self._stop(track)
        return tracks

    def _stop(self, track: Track | None) -> None:
        if track is None or track.closed:
            return
        track.closed = True
        if track.opened:
            self._fetcher.drop(track)
        self._shelf.clear(track)

    def _forget(self, tracks: Mapping[Partition, Track]) -> None:
        """Forgets tracks, but not those that have taken their places."""
        for partition, track in tracks.items():
            if self.tracks.get(partition) is track:
                del self.tracks[partition]

    async def _assignments(self, partitions: Iterable[Partition]) -> None:
        """Waits for the user to have been told that partitions are his before he is told that they are not."""
        for told in {self._assigning[partition] for partition in partitions if partition in self._assigning}:
            await told.wait()


async def _tell(callback: Callback | None, partitions: frozenset[Partition]) -> None:
    if callback is None or not partitions:
        return
    with logged(callback, partitions):
        result = callback(partitions)
        if inspect.isawaitable(result):
            await result


@contextmanager
def logged(callback: Callable[..., object], partitions: frozenset[Partition]) -> Iterator[None]:
    """Logs what a callback raises: it has no say in who owns the partitions."""
    try:
        yield
    except Exception:
        log.exception("%s failed, of %s partitions", getattr(callback, "__name__", callback), len(partitions))
