"""Finds the embedded service by an entry point, because its package may import the client but not the reverse."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from queuey.client.errors import InvalidArgument
from queuey.model.extras import DISTRIBUTION

ENTRY_POINTS = "queuey.embedded"


def opener(name: str) -> Callable[..., Any]:
    """Returns the function of :mod:`queuey.embedded` with this name.

    Raises:
        InvalidArgument: No installed package has this entry point.
    """
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        function: Callable[..., Any] = entry.load()
        return function
    raise InvalidArgument(
        f"no installed package has the entry point {name!r} of {ENTRY_POINTS!r}, which opens a store in this process. "
        f"Install {DISTRIBUTION} again, or use queuey.embedded.{name}"
    )
