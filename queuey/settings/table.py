"""The table of all settings, for ``--help``, ``queuey settings`` and the documentation."""

from __future__ import annotations

import re
import typing
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Meta

from queuey.model.errors import SettingsError
from queuey.settings.definitions import GROUPS, Settings
from queuey.settings.extensions import find_installed
from queuey.settings.setting_values import SecretName, type_text, without_none
from queuey.settings.users import Users, as_json

PREFIX = "QUEUEY_"
DEFAULT_SOURCE = "default"
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


class Setting(NamedTuple):
    """A line of the table: ``type``, ``default`` and ``help`` for people, ``hint`` for converting values.

    A setting that is a table has ``fields``, whose names begin with that of the table, and ``preset``, its default
    value.
    """

    name: str
    type: str
    default: str
    help: str
    hint: Any
    fields: tuple[Setting, ...] = ()
    preset: Any = None
    group: str = ""

    @property
    def attribute(self) -> str:
        return attribute_of(self.name)

    @property
    def kind(self) -> Any:  # noqa: ANN401 - a type
        return without_none(typing.get_args(self.hint)[0])

    @property
    def seconds(self) -> bool:
        return _is_length(self.hint.__metadata__[0])

    @property
    def option(self) -> str:
        return option_of(self.name)

    @property
    def variable(self) -> str:
        return variable_of(self.name)


def attribute_of(name: str) -> str:
    return name.replace(".", "_")


def option_of(name: str) -> str:
    return "--" + attribute_of(name).replace("_", "-")


def variable_of(name: str) -> str:
    return PREFIX + attribute_of(name).upper()


@cache
def table() -> tuple[Setting, ...]:
    """Returns all settings, group by group.

    Raises:
        SettingsError: Extensions cannot be loaded, or two parts of the service have a setting of the same name.
    """
    lines = {line.name: line for line in _make_lines(Settings, "")}
    groups = {group: [lines[name] for name in names] for group, names in GROUPS.items()}
    for extension in find_installed():
        groups.setdefault(extension.group, []).extend(_make_lines(extension, ""))
    names = Counter(line.name for members in groups.values() for line in members)
    name, count = names.most_common(1)[0]
    if count > 1:
        raise SettingsError(f"{count} parts of the service have a setting {name!r}. Remove one of them.")
    return tuple(line._replace(group=group) for group, members in groups.items() for line in members)


def value_of(settings: Settings, setting: Setting) -> Any:  # noqa: ANN401 - of any type
    extensions = (extension for extension in settings.extensions if setting.attribute in extension.__struct_fields__)
    return getattr(next(extensions, settings), setting.attribute)


def masked_text(name: str, value: object) -> str:
    """Returns a value as text: passwords masked, ``users`` as JSON, None blank."""
    if value is None:
        return ""
    if name == "cassandra_password" and not isinstance(value, SecretName):
        return "***"
    if name == "users" and isinstance(value, Mapping):
        return as_json(value)
    text = as_text(value)
    return _PASSWORD.sub(r"\1:***@", text) if name == "store" else text


def as_text(value: object) -> str:
    """Returns a value in the form of the command line, such as ``write=QUORUM,delay=5`` for a table.

    Tables in a table, which can only be set in a file, are shown as ``applications=[shop=[user=5]]``. Unset fields and
    empty tables are left out.
    """
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        fields = {name: field for name, field in value.items() if field not in (None, {})}
        return ",".join(f"{name}={_bracket(field)}" for name, field in fields.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _bracket(value: object) -> str:
    text = as_text(value)
    return f"[{text}]" if isinstance(value, Mapping | msgspec.Struct) else text


def _make_lines(struct: type[msgspec.Struct], prefix: str) -> list[Setting]:
    hints = typing.get_type_hints(struct, include_extras=True)
    lines = []
    for field in msgspec.structs.fields(struct):
        hint, name = hints[field.name], prefix + field.encode_name
        if name == "extensions":
            continue  # table() adds the settings of extensions.
        meta: Meta = hint.__metadata__[0]
        kind = without_none(typing.get_args(hint)[0])
        default = (meta.extra or {}).get("default") or f"`{as_text(field.default)}`"
        default = "" if default == "`None`" else default
        line = Setting(name, _type_text(kind, meta), default, meta.description or "", hint)
        if _is_table(kind):
            line = line._replace(fields=tuple(_make_lines(kind, f"{name}.")), preset=field.default)
        lines.append(line)
    return lines


def _is_table(kind: Any) -> bool:  # noqa: ANN401 - a type
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _type_text(kind: Any, meta: Meta) -> str:  # noqa: ANN401 - a type
    if kind == Users:
        return "table of tables"
    if typing.get_origin(kind) is dict:
        return "tables"
    if kind is SecretName:
        return "`env:NAME` or `file:PATH`"
    return "table" if _is_table(kind) else type_text(kind, meta, seconds=_is_length(meta))


def _is_length(meta: Meta) -> bool:
    return bool((meta.extra or {}).get("seconds"))
