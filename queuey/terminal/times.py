"""Options whose values are lengths of time, or instants."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from queuey import time_parsing
from queuey.messages import MAX_TTL


def duration(
    about: str,
    *names: str,
    least: float = 0.0,
    most: float = math.inf,
    whole: bool = False,
    **others: Any,  # noqa: ANN401 - typer's
) -> Any:  # noqa: ANN401 - typer's
    """Returns an option whose value is seconds, given as ``90`` or with units: ``1h30m``.

    Args:
        about: Its help.
        names: Those of the option, if not its parameter's.
        least: Min seconds.
        most: Max seconds.
        whole: No fractions of a second.
        others: Of :func:`typer.Option`.
    """
    return _option(about, names, partial(seconds, least=least, most=most, whole=whole), others)


def ttl(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    """Returns an option whose value is a time to live."""
    return duration(about, *names, least=1, most=MAX_TTL, whole=True, **others)


def position(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    """Returns an option whose value is a position in time, as the API takes it."""
    return _option(about, names, position_of, others)


def instant(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    """Returns an option whose value is seconds since 1970, given as a position in time."""
    return _option(about, names, instant_of, others)


def due(about: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    """Returns an option whose value is the instant at which a message is due, in seconds since 1970."""
    return _option(about, names, due_at, others)


def _option(about: str, names: tuple[str, ...], parser: Callable[[Any], Any], others: dict[str, Any]) -> Any:  # noqa: ANN401 - typer's
    return typer.Option(*names, help=about, metavar="TIME", parser=parser, **others)


def seconds(text: str | float, *, least: float, most: float, whole: bool) -> float:
    """Returns a length of time in seconds.

    Raises:
        typer.BadParameter: It is none, or too short or too long, or has a fraction of a second.
    """
    try:
        found = time_parsing.duration(text) if isinstance(text, str) else text
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not least <= found <= most:
        shortest, longest = time_parsing.length(least), time_parsing.length(most)
        bounds = f"at least {shortest}" if most == math.inf else f"between {shortest} and {longest}"
        raise typer.BadParameter(f"{text!r} is not {bounds}")
    if whole and found != int(found):
        raise typer.BadParameter(f"{text!r} is not a whole number of seconds")
    return int(found) if whole else found


def position_of(text: str) -> str:
    """Returns a position in time as the API takes it.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return time_parsing.point(text, time.time())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def instant_of(text: str, now: float | None = None) -> float:
    """Returns an instant in seconds since 1970, exact to the microsecond.

    Args:
        text: In one of the forms of positions.
        now: What relative ones count from; None: the present.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return float(time_parsing.point(text, time.time() if now is None else now))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no instant: seconds since 1970, ISO 8601, or such as -1h") from error


def due_at(text: str) -> float:
    """Returns when a delayed message is due. The present second is fine.

    Raises:
        typer.BadParameter: It is no instant, or lies in the past, or further ahead than a delay may.
    """
    now = time.time()
    found = instant_of(text, now)
    if found <= now - 1:
        ago = f"{text!r} was {time_parsing.length(now - found)} ago"
        raise typer.BadParameter(f"{ago} ({time_parsing.iso(found)}). Give a later one")
    if found - now > MAX_TTL:
        raise typer.BadParameter(
            f"{text!r} is {time_parsing.length(found - now)} ahead: {MAX_TTL // 86_400} days are the longest delay"
        )
    return found


def until(due: float | None) -> dict[str, float]:
    """Returns the delay that makes a message due at an instant, as an option; none for the present."""
    return {} if due is None else {"delay": max(0.0, due - time.time())}
