"""Checks that an answer has everything that an older one had."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

DRAWN = {"key", "receipt", "worker", "version"}
"""Fields that differ in each run, even at the same time on the same store: their values are not compared."""
LIVE = DRAWN | {
    *("application", "id", "message_id", "move"),
    *("cursor", "horizon", "newest", "next", "offset", "oldest"),
    *(
        "at",
        "began",
        "changed",
        "created",
        "ended",
        "epoch",
        "expires",
        "seen",
        "since",
        "state_at",
        "text",
        "timestamp",
    ),
    *("delayed", "due", "lag", "lag_seconds", "updated"),
}
"""The same for a run of the program from its beginning, on a store of its own, while time passes."""


def differences(before: Any, now: Any, *, drawn: Collection[str] = DRAWN, place: str = "") -> list[str]:  # noqa: ANN401 - any JSON values
    """Returns the places where a value lacks something that the other one had; a new field is not a difference."""
    return list(_differences(before, now, drawn, place))


def _differences(before: Any, now: Any, drawn: Collection[str], place: str) -> Iterator[str]:  # noqa: ANN401 - likewise
    if isinstance(before, dict) and isinstance(now, dict):
        yield from (f"{place}.{name} is missing" for name in before.keys() - now.keys())
        for name in before.keys() & now.keys():
            if name not in drawn:
                yield from _differences(before[name], now[name], drawn, f"{place}.{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (first, second) in enumerate(zip(before, now, strict=True)):
            yield from _differences(first, second, drawn, f"{place}[{number}]")
    elif before != now:
        yield f"{place} is {now!r}, not {before!r}"
