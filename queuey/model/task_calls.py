"""Shows calls of tasks to people: the name and shortened arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from queuey.model.texts import printable, shorten

MAX_NAME, MAX_ARGUMENTS = 80, 80
HIDDEN = "…"


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a call: a JSON object with only these fields."""

    task: Annotated[str, msgspec.Meta(min_length=1)]
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


_decode = msgspec.json.Decoder(_Call).decode


class ShownCall(NamedTuple):
    """A call for people: ``str()`` gives ``thumb("beach.jpg", size=4)``.

    Attributes:
        task: The name, at most ``MAX_NAME`` characters.
        arguments: JSON values, named ones as ``name=value``; at most ``MAX_ARGUMENTS`` characters.
    """

    task: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.task}({self.arguments})"


def find_call(body: str | bytes) -> ShownCall | None:
    """Returns the call in the JSON text of a message, or None if the message calls no task.

    The call is printable, on one line.
    """
    try:
        call = _decode(body)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return ShownCall(shorten(printable(call.task[: MAX_NAME + 1]), MAX_NAME), _arguments_text(call))


def _arguments_text(call: _Call) -> str:
    text = ""
    for number, argument in enumerate(_argument_texts(call)):
        text += f", {argument}" if number else argument
        if len(text) > MAX_ARGUMENTS:
            break
    return shorten(text, MAX_ARGUMENTS)


def _argument_texts(call: _Call) -> Iterator[str]:
    for value in call.args:
        yield _value_text(value)
    for name, value in call.kwargs.items():
        yield f"{printable(name[: MAX_ARGUMENTS + 1])}={_value_text(value)}"


def _value_text(value: msgspec.Raw) -> str:
    # Each character has at most 4 bytes.
    return printable(bytes(memoryview(value)[: 4 * (MAX_ARGUMENTS + 1)]).decode(errors="ignore"))
