"""Instants and lengths of time in options."""

from __future__ import annotations

import time

import typer

from queuey.terminal import time_parsing


def instant(text: str, now: float) -> float:
    """Returns an instant in seconds since 1970, exact to the microsecond.

    Args:
        text: Seconds since 1970, ISO 8601, ``now``, or relative: ``-1h``.
        now: What relative ones count from.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return float(time_parsing.point(text, now))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no instant: seconds since 1970, ISO 8601, or such as -1h") from error


def due(text: str, now: float) -> float:
    """Returns when a delayed message is due, in seconds since 1970, as ``--at`` says it. The present second is fine.

    Raises:
        typer.BadParameter: It is no instant, or lies in the past, or further ahead than a delay may.
    """
    from queuey.messages import MAX_TTL

    found = instant(text, now)
    if found <= now - 1:
        ago = f"{text!r} was {time_parsing.length(now - found)} ago"
        raise typer.BadParameter(f"{ago} ({time_parsing.iso(found)}). Give a later one", param_hint="--at")
    if found - now > MAX_TTL:
        raise typer.BadParameter(
            f"{text!r} is {time_parsing.length(found - now)} ahead: {MAX_TTL // 86_400} days are the longest delay",
            param_hint="--at",
        )
    return found


def until(due: float | None) -> dict[str, float]:
    """Returns the delay that makes a message due at an instant, as an option; none for the present."""
    return {} if due is None else {"delay": max(0.0, due - time.time())}


def seconds(text: str, option: str | None = None) -> float:
    """Returns a length of time in seconds.

    Args:
        text: Seconds, or steps with units: ``1h30m``.
        option: Where it was given, for the error.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return time_parsing.duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def ttl(text: str) -> int:
    """Returns a time to live in seconds, as ``--ttl`` says it.

    Raises:
        typer.BadParameter: It is none, or too short or too long, or has a fraction of a second.
    """
    from queuey.messages import MAX_TTL

    found = seconds(text, "--ttl")
    if not (found.is_integer() and 1 <= found <= MAX_TTL):
        days = f"{MAX_TTL // 86_400} days"
        raise typer.BadParameter(f"a TTL is 1 second to {days}, in whole seconds, not {text!r}", param_hint="--ttl")
    return int(found)


def length(text: str, *, least: float, most: float) -> float:
    """Returns a length of time in seconds.

    Raises:
        typer.BadParameter: It is none, or too short or too long.
    """
    found = seconds(text)
    if not least <= found <= most:
        raise typer.BadParameter(
            f"{text!r} is not between {time_parsing.length(least)} and {time_parsing.length(most)}"
        )
    return found
