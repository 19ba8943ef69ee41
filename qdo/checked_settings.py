"""Settings that refuse values which their types forbid, however they are made."""

from __future__ import annotations

import typing

import msgspec

from qdo.errors import InvalidArgument


class CheckedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A struct whose fields are checked when it is made, by their types and limits."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument with the setting and its value."""
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError as error:
                raise InvalidArgument(f"setting {name} is {value!r}: {error}") from error
