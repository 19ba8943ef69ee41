"""Names of unique calls: while a call of a name waits or runs, no other one is sent."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from hashlib import blake2b
from string import Formatter
from typing import Any, Literal

import msgspec

from qdo.errors import InvalidArgument

Unique = Literal[True] | str | Callable[..., str]
"""The common part of calls of which one is sent: all arguments (True), a text with some of them in braces, or the
result of a function."""

_CAN_BE_NAME = re.compile(r"[^/\ud800-\udfff]{1,255}", re.DOTALL)


def check_unique(unique: Unique, function: Callable[..., Any], task: str) -> None:
    """Raises InvalidArgument if no names can be made of it."""
    if unique is True or callable(unique):
        return
    if not isinstance(unique, str):
        raise InvalidArgument(f"unique of task {task} is {unique!r}: give True, a text, or a function of its arguments")
    try:
        fields = {re.split(r"[.\[]", field)[0] for _, field, _, _ in Formatter().parse(unique) if field is not None}
    except ValueError as error:
        raise InvalidArgument(f"unique of task {task} is {unique!r}: {error}") from error
    if unknown := fields - inspect.signature(function).parameters.keys():
        raise InvalidArgument(f"unique of task {task} is {unique!r}: it has no argument {min(unknown) or '{}'}")


def name_of(unique: Unique, task: str, bound: inspect.BoundArguments) -> str:
    """Returns the name of a call, which begins with that of its task; a hash of it if no message can be named so.

    Raises InvalidArgument: the function does not return text, or the text cannot be filled in.
    """
    if callable(unique):
        key = unique(*bound.args, **bound.kwargs)
        if not isinstance(key, str):
            raise InvalidArgument(f"unique of task {task} returned {key!r}: it returns a text")
    else:
        bound.apply_defaults()
        try:
            if unique is True:
                # Calls with defaults given or not, and with keys in any order, have the same name.
                text = msgspec.json.encode(bound.arguments, order="deterministic")
                key = blake2b(text, digest_size=16).hexdigest()
            else:
                key = unique.format_map(bound.arguments)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise InvalidArgument(f"unique of task {task} is {unique!r}: {error}") from error
    name = f"{task}:{key}"
    # The name of a task may have a colon, too: then it is unclear where it ends.
    if ":" not in task and _CAN_BE_NAME.fullmatch(name):
        return name
    return blake2b(f"{len(task)}:{name}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
