"""Parsers of fields, as in the original: lenient about the notation of numbers, with every bad field reported at once.

Each parser takes the value as it came (text from headers, forms and queries, anything from JSON) and raises
``ValueError`` with the text for the client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from queuey.model.errors import InvalidRequest, Malformed
from queuey.model.messages import is_readable
from queuey.web.responses import encode

decode_any = msgspec.json.Decoder().decode
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding text that is not JSON or is nested too deeply."""

P = ParamSpec("P")
T = TypeVar("T")

CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
"""Characters that a header's value cannot have."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,80}")
_DECIMAL = re.compile(r"-?(?:[0-9]{1,80}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MAX_SHOWN = 80

REQUIRED = "Required"


class BadField(ValueError):
    """A bad value of a field; the message is for the client."""


class Misfit(BadField):
    """A value that the queue's row does not allow. The row may have changed since it was read."""


class Errors(dict[str, str]):
    """Errors of a request by field, collected so that one response reports all of them.

    Attributes:
        depend_on_row: At least one error is about a value that the queue's row does not allow.
    """

    depend_on_row = False

    def parse_field(
        self, name: str, parse: Callable[Concatenate[object, P], T], value: object, *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Returns the parsed value. Returns None if it is absent (None or blank), or bad, which is recorded."""
        if value is None or value == "":
            return None
        try:
            return parse(value, *args, **kwargs)
        except ValueError as error:
            self[name] = str(error)
            self.depend_on_row = self.depend_on_row or isinstance(error, Misfit)
            return None

    def include(self, inner: Errors, prefix: str) -> None:
        self.update({prefix + name: text for name, text in inner.items()})
        self.depend_on_row = self.depend_on_row or inner.depend_on_row

    def check(self) -> None:
        """Raises an error that names every bad field, if there are any.

        Raises:
            Malformed: The request is bad whatever the queue's row is.
            InvalidRequest: The request might be good with another row.
        """
        if self:
            raise InvalidRequest(self) if self.depend_on_row else Malformed(self)


def show(value: object) -> str:
    return (value if isinstance(value, str) else encode(value).decode())[:_MAX_SHOWN]


def parse_integer(value: object, minimum: int, maximum: int) -> int:
    """Reads a whole number, also from text in plain digits; decimals of a JSON number are cut off."""
    if _is_number(value, _INTEGER):
        return check_range(int(value), minimum, maximum)  # type: ignore[call-overload,no-any-return] # it was checked
    raise _make_not_number(value, "a whole number")


def parse_decimal(value: object, minimum: float, maximum: float) -> float:
    """Reads a number, also from text in plain digits, without an exponent."""
    if not _is_number(value, _DECIMAL):
        raise _make_not_number(value, "a number")
    number: Any = float(value) if isinstance(value, str) else value
    return float(check_range(number, minimum, maximum))  # only now: a whole JSON number may be too large for a float


def _make_not_number(value: object, kind: str) -> BadField:
    is_number = isinstance(value, str) and _NUMBER.fullmatch(value.strip()) is not None
    return BadField(f'"{show(value)}" is not {f"{kind} in plain digits" if is_number else "a number"}')


def _is_number(value: object, form: re.Pattern[str]) -> bool:
    if isinstance(value, str):
        return form.fullmatch(value.strip()) is not None
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


N = TypeVar("N", int, float)


def check_range(number: N, minimum: float, maximum: float) -> N:
    if number < minimum:
        raise BadField(f"{_format_number(number)} is less than minimum value {_format_number(minimum)}")
    if number > maximum:
        raise BadField(f"{_format_number(number)} is greater than maximum value {_format_number(maximum)}")
    return number


def _format_number(number: object) -> str:
    if isinstance(number, float):
        return str(int(number))[:_MAX_SHOWN] if number.is_integer() else f"{number:.15g}"
    return str(number)[:_MAX_SHOWN]


def parse_choice(value: object, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    raise BadField(f'"{show(value)}" is not one of {", ".join(choices)}')


def parse_text(value: object, max_length: int | None = None) -> str:
    if not isinstance(value, str):
        raise BadField(f'"{show(value)}" is not a string')
    if max_length is not None and len(value) > max_length:
        raise BadField(f"Longer than maximum length {max_length}")
    return value


def parse_printable_text(value: object, max_length: int) -> str:
    line = parse_text(value, max_length)
    if not is_readable(line):
        raise BadField("Has characters that do not show, or a space at an end")
    return line


def parse_list(value: object, max_length: int | None) -> list[Any]:
    if not isinstance(value, list):
        raise BadField("Is not a list")
    if max_length is not None and len(value) > max_length:
        raise BadField(f"Longer than maximum length {max_length}")
    return value


def parse_boolean(value: object) -> bool:
    """Reads a boolean leniently: ``false``, ``0`` and blank are false, everything else is true."""
    if isinstance(value, str):
        return value.strip().lower() not in {"", "false", "0"}
    return bool(value)


def parse_true_or_false(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadField("Is not true or false")
    return value


def bad_json(why: object) -> InvalidRequest:
    return Malformed({"InvalidParameter": f"Unable to properly deserialize JSON body. {why}."})


def read_object(body: bytes) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        InvalidRequest: The body is not a JSON object.
    """
    try:
        value = decode_any(body)
    except JSON_ERRORS as error:
        raise bad_json(error) from None
    if not isinstance(value, dict):
        raise bad_json("It is not an object")
    return value
