"""Settings that refuse values which their types forbid, however they are made."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping

import msgspec

from qdo.errors import InvalidArgument


class CheckedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A struct whose fields are checked when it is made, by their types and limits."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument with the setting and its value."""
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError as error:
                raise InvalidArgument(f"setting {name} is {value!r}: {error}") from error


@functools.cache  # a worker makes settings for every message that fails
def _hints(kind: type) -> Mapping[str, object]:
    return typing.get_type_hints(kind, include_extras=True)
