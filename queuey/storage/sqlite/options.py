"""Options of an embedded store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from queuey import ids


@dataclass(frozen=True, kw_only=True)
class SqliteOptions:
    """Options of an embedded store.

    Attributes:
        sync: ``full``: a write is on disk (fsync) before it is acknowledged. ``normal``: it survives a crash of the
            process, not necessarily one of the machine.
        busy_timeout: Seconds to wait for another process's write lock before ``StoreBusy``.
        deadline: Seconds after which any call gives up.
        readers: Connections for reading; more calls at once wait for a free one.
        cached_queues: Rows of the catalogue kept in memory.
        sweep_interval: Seconds between sweeps of expired messages; None: only ``sweep`` calls sweep.
        sweep_rows: Rows that a step of the sweep reads, at least; it takes more while a step takes a few ms.
        clock: Returns the wall clock in ticks (see :mod:`queuey.ids`).
        pragmas: Further statements run on every new connection.
    """

    sync: Literal["full", "normal"] = "full"
    busy_timeout: float = 5.0
    deadline: float = 15.0
    readers: int = 4
    cached_queues: int = 20_000
    sweep_interval: float | None = 1.0
    sweep_rows: int = 500
    clock: Callable[[], int] = field(default=ids.now_ticks)
    pragmas: tuple[str, ...] = ()
