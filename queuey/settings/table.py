"""The table of the settings, for people: in ``--help``, in ``queuey settings`` and in the documentation."""

from __future__ import annotations

import re
import types
import typing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Meta

from queuey.settings.definitions import Settings
from queuey.settings.secret_names import SecretName

PREFIX = "QUEUEY_"
DEFAULT_SOURCE = "default"
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


class Setting(NamedTuple):
    """A line of the table: ``type``, ``default`` and ``help`` for people, ``hint`` for converting values."""

    name: str
    type: str
    default: str
    help: str
    hint: Any

    @property
    def option(self) -> str:
        """The option of ``queuey serve``."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()


def table() -> list[Setting]:
    """Returns the table, one line a setting."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    lines = []
    for field in msgspec.structs.fields(Settings):
        meta: Meta = hints[field.name].__metadata__[0]
        default = (meta.extra or {}).get("default") or f"`{_text(field.default)}`"
        kind = _type_text(bare(hints[field.name]), meta)
        default = "" if default == "`None`" else default
        lines.append(Setting(field.name, kind, default, meta.description or "", hints[field.name]))
    return lines


def shown(name: str, value: object) -> str:
    """Returns a value as it may be printed: never with a password in it."""
    if value is None:
        return ""
    if name == "cassandra_password" and not isinstance(value, SecretName):
        return "***"
    text = _text(value)
    return _PASSWORD.sub(r"\1:***@", text) if name == "store" else text


def bare(hint: Any) -> Any:  # noqa: ANN401 - a type
    """Returns a setting's type without ``None``: no text and no TOML value stands for it."""
    kind = typing.get_args(hint)[0]
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        (kind,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
    return kind


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _type_text(kind: Any, meta: Meta) -> str:  # noqa: ANN401 - a type
    if choices := typing.get_args(kind):
        *others, last = (f"`{choice}`" for choice in choices)
        return f"{', '.join(others)} or {last}"
    names = {
        Path: "path",
        SecretName: "`env:NAME` or `file:PATH`",
        str: "text",
        int: "whole number",
        float: "number",
        bool: "`on` or `off`",
    }
    return f"{names[kind]}, {meta.ge} to {meta.le}" if meta.ge is not None and meta.le is not None else names[kind]
