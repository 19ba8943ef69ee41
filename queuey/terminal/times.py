"""Command options whose values are lengths of time or instants."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from queuey.model import time_parsing
from queuey.model.messages import MAX_TTL


def duration(
    about: str,
    *names: str,
    minimum: float = 0.0,
    maximum: float = math.inf,
    whole: bool = False,
    **others: Any,  # noqa: ANN401 - typer's
) -> Any:  # noqa: ANN401 - typer's
    """Returns an option whose value is seconds, given as ``90`` or with units: ``1h30m``.

    Args:
        about: Help of the option.
        names: Names of the option, if they do not follow from its parameter.
        minimum: Min seconds.
        maximum: Max seconds.
        whole: Whether only whole seconds are allowed.
        others: Further arguments of :func:`typer.Option`.
    """
    return _make_time_option(about, names, partial(seconds, minimum=minimum, maximum=maximum, whole=whole), others)


def ttl(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    return duration(about, *names, minimum=1, maximum=MAX_TTL, whole=True, **others)


def position(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    return _make_time_option(about, names, position_of, others)


def instant(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    return _make_time_option(about, names, parse_instant, others)


def due(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    return _make_time_option(about, names, due_at, others)


def _make_time_option(about: str, names: tuple[str, ...], parser: Callable[[Any], Any], others: dict[str, Any]) -> Any:  # noqa: ANN401 - typer's
    return typer.Option(*names, help=about, metavar="TIME", parser=parser, **others)


def seconds(text: str | float, *, minimum: float, maximum: float, whole: bool) -> float:
    """Returns a length of time in seconds.

    Raises:
        typer.BadParameter: The text is not a length of time, is out of bounds, or has a fraction where none is allowed.
    """
    try:
        length = time_parsing.parse_duration(text) if isinstance(text, str) else text
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not minimum <= length <= maximum:
        shortest, longest = time_parsing.format_duration(minimum), time_parsing.format_duration(maximum)
        bounds = f"at least {shortest}" if maximum == math.inf else f"between {shortest} and {longest}"
        raise typer.BadParameter(f"{text!r} is not {bounds}")
    if whole and length != int(length):
        raise typer.BadParameter(f"{text!r} is not a whole number of seconds")
    return int(length) if whole else length


def position_of(text: str) -> str:
    """Returns a position in time in the form of the API.

    Raises:
        typer.BadParameter: The text is not a position.
    """
    try:
        return time_parsing.parse_point(text, time.time())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def parse_instant(text: str, now: float | None = None) -> float:
    """Returns an instant in seconds since 1970, exact to the microsecond.

    Args:
        text: A position in time.
        now: The start of relative times; None for the present.

    Raises:
        typer.BadParameter: The text is not an instant.
    """
    try:
        return float(time_parsing.parse_point(text, time.time() if now is None else now))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time: use seconds since 1970, ISO 8601, or -1h") from error


def due_at(text: str) -> float:
    """Returns when a delayed message is due, in seconds since 1970. The present second is allowed.

    Raises:
        typer.BadParameter: The text is not an instant, is in the past, or is further ahead than the max delay.
    """
    now = time.time()
    due_time = parse_instant(text, now)
    if due_time <= now - 1:
        ago = f"{text!r} was {time_parsing.format_duration(now - due_time)} ago"
        raise typer.BadParameter(f"{ago} ({time_parsing.format_instant(due_time)}). Give a later time")
    if due_time - now > MAX_TTL:
        ahead = time_parsing.format_duration(due_time - now)
        raise typer.BadParameter(f"{text!r} is {ahead} ahead: the longest delay is {MAX_TTL // 86_400} days")
    return due_time


def make_delay_argument(due: float | None) -> dict[str, float]:
    return {} if due is None else {"delay": max(0.0, due - time.time())}
