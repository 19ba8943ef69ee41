"""The service inside the program, which lies above the client: the client finds it by an entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from queuey.client.errors import InvalidArgument
from queuey.extras import DISTRIBUTION

ENTRY_POINTS = "queuey.embedded"


def opener(name: str) -> Callable[..., Any]:
    """Returns the function of :mod:`queuey.embedded` that has this name.

    Raises:
        InvalidArgument: No distribution that is installed has it.
    """
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        function: Callable[..., Any] = entry.load()
        return function
    raise InvalidArgument(
        f"no installed package has the entry point {name!r} of {ENTRY_POINTS!r}, which opens a store in this process. "
        f"Install {DISTRIBUTION} again, or use queuey.embedded.{name}"
    )
