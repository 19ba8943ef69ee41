"""Settings of a worker."""

from __future__ import annotations

from typing import Any

import pytest

from qdo.errors import InvalidArgument
from qdo.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": 0},
        {"tasks": 0},
        {"processes": -1},
        {"parallel": 0},
        {"window": 0},
        {"batch": 0},
        {"slice": 0},
        {"slice": float("nan")},
        {"time_limit": 0},
        {"time_limit": float("inf")},
        {"dead_ttl": 0},
        {"dead_ttl": 33_554_433},
        {"dead_queue": ""},
        {"commit_messages": 0},
        {"commit_seconds": 0},
        {"drain": -1},
        {"lag_seconds": 0},
        {"on_failure": "ignore"},
        {"by": "customer"},
    ],
)
def test_what_cannot_work_is_refused_and_named(wrong: dict[str, Any]) -> None:
    """A setting out of range is refused when the settings are made, by its name."""
    with pytest.raises(InvalidArgument) as refused:
        WorkerSettings(**wrong)
    (name,) = wrong
    assert name in str(refused.value) or name in {"dead_queue", "by"}


def test_the_bounds_themselves_are_fine() -> None:
    """No drain at all, no time limit, one of everything: all of that can be meant."""
    WorkerSettings(drain=0, time_limit=None, threads=1, tasks=1, parallel=1, window=1, batch=1, commit_messages=1)
