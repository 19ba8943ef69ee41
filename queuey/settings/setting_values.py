"""The engine of settings, for the service and for ``qdo``: settings of structs, sources, conversion.

Each field of a struct is a setting. Its annotation has type and bounds, its line in the struct's docstring the help. A
setting names the place of a secret, and never contains the secret.
"""

from __future__ import annotations

import inspect
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from queuey.model.errors import SettingsError as SettingsError  # noqa: PLC0414 - qdo takes it from here
from queuey.model.texts import did_you_mean
from queuey.model.time_parsing import parse_duration

SECONDS, NUMBER = {"seconds": True}, {"seconds": False}
"""Mark an int that is a length of time in seconds, and a float that is not."""
_DESCRIPTION = re.compile(r"    (?:(\w+)(?: \((.+?)\))?: |    )(.+)")
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_SECRETS = frozenset({"cassandra_password", "key"})
_KUBERNETES_VARIABLE = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)=.*|\w+_PORT=(tcp|udp|sctp)://.*|\w+_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*"
)
"""Variables that Kubernetes sets for each Service; those of a Service ``queuey`` look like settings."""
_SWITCHES = {"on": "true", "off": "false", "yes": "true", "no": "false"}


class Given(NamedTuple):
    """A given value.

    Attributes:
        value: A text, or a value of TOML.
        source: Where the value came from, for messages.
        base: The directory that paths are relative to; None for the working directory.
    """

    value: Any
    source: str
    base: Path | None = None


class Setting(NamedTuple):
    """A setting: ``type``, ``default`` and ``help`` for people, ``kind`` and ``meta`` for converting values.

    A setting that is a table has ``fields``, whose names begin with that of the table. ``preset`` is the default value.
    """

    name: str
    type: str
    default: str
    help: str
    kind: Any
    meta: Meta
    preset: Any
    fields: tuple[Setting, ...] = ()
    group: str = ""
    variable: str = ""

    @property
    def attribute(self) -> str:
        return attribute_of(self.name)

    @property
    def seconds(self) -> bool:
        return _is_length(self.kind, self.meta)

    @property
    def option(self) -> str:
        return option_of(self.name)


def attribute_of(name: str) -> str:
    return name.replace(".", "_")


def option_of(name: str) -> str:
    return "--" + attribute_of(name).replace("_", "-")


def list_settings(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[Setting]:
    hints, described = typing.get_type_hints(struct, include_extras=True), read_descriptions(struct)
    for field in msgspec.structs.fields(struct):
        name, (kind, meta) = prefix + field.encode_name, split_hint(hints[field.name])
        default, text = described.get(field.name, ("", ""))
        shown = as_text(field.default)
        setting = Setting(
            name, type_text(kind, meta), default or (shown and f"`{shown}`"), text, kind, meta, field.default
        )
        yield setting._replace(fields=tuple(list_settings(kind, f"{name}."))) if _is_table(kind) else setting


def read_descriptions(struct: type[msgspec.Struct]) -> dict[str, tuple[str, str]]:
    """Returns the default in words and the help of each attribute in a struct's docstring.

    Brackets behind an attribute's name contain the default in words, if the value itself does not show it.
    """
    described: dict[str, tuple[str, str]] = {}
    _, _, attributes = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:\n")
    name = ""
    for line in filter(None, map(_DESCRIPTION.fullmatch, attributes.replace("``", "`").splitlines())):
        name = line[1] or name
        default, text = described.get(name, (line[2] or "", ""))
        described[name] = default, f"{text} {line[3]}".lstrip()
    return described


def split_hint(hint: Any) -> tuple[Any, Meta]:  # noqa: ANN401 - a type
    hint = without_none(hint)
    return (
        (without_none(hint.__origin__), hint.__metadata__[0])
        if typing.get_origin(hint) is Annotated
        else (hint, Meta())
    )


def _is_table(kind: Any) -> bool:  # noqa: ANN401 - a type
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_length(kind: Any, meta: Meta) -> bool:  # noqa: ANN401 - a type
    return bool((meta.extra or {}).get("seconds", kind is float))


def read_sources(
    settings: Mapping[str, Setting],
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    config: Path | None,
    *,
    config_variable: str,
    option: Callable[[str], str] = option_of,
) -> list[tuple[str, Given]]:
    """Returns all given values with the names of their settings; a later one overrides an earlier one.

    Args:
        settings: The settings by name.
        options: Values of the command line, or of a program, by setting name; None or an empty list if not given.
        environ: The environment. Empty variables count as not given.
        config: The settings file that the command line names; by default ``config_variable`` names it.
        config_variable: The environment variable.
        option: Returns the name of a setting's option in errors.

    Raises:
        SettingsError: A setting is unknown, or the file cannot be read.
    """
    path = config or (Path(environ[config_variable]) if environ.get(config_variable) else None)
    variables = {setting.variable: name for name, setting in settings.items()}
    ours = {key: text for key, text in environ.items() if key in variables and _is_given(key, text)}
    return [
        *([] if path is None else _read_file(path, settings)),
        *((variables[key], Given(text, key)) for key, text in ours.items()),
        *((name, Given(value, option(name))) for name, value in options.items() if value not in (None, [])),
    ]


def _read_file(path: Path, settings: Iterable[str]) -> Iterator[tuple[str, Given]]:
    """Reads a settings file, without checks of the names. Relative paths in it start at the file's directory.

    Each table in a table, such as ``[consistency.strong]``, is one setting.

    Raises:
        SettingsError: The file cannot be read, or is not TOML.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not TOML: {error}.") from error
    owners = {name.rpartition(".")[0] for name in settings} - {""}
    for name, value in values.items():
        tables = value if name in owners and isinstance(value, dict) else None
        for key, given in {name: value}.items() if tables is None else tables.items():
            yield key if tables is None else f"{name}.{key}", Given(given, str(path), path.parent)


def _is_given(variable: str, text: str) -> bool:
    return bool(text) and _KUBERNETES_VARIABLE.fullmatch(f"{variable}={text}") is None


def variables_with_prefix(environ: Mapping[str, str], prefix: str) -> list[str]:
    return sorted(name for name, text in environ.items() if name.startswith(prefix) and _is_given(name, text))


def check_known(key: str, names: Iterable[str], where: str) -> None:
    """Checks that a setting is known.

    Raises:
        SettingsError: The setting is unknown; the text suggests similar names.
    """
    known = list(names)
    if key not in known:
        raise SettingsError(f"Unknown setting {key} {where}{did_you_mean([key], known)}")


def without_none(hint: Any) -> Any:  # noqa: ANN401 - a type
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        (hint,) = (member for member in typing.get_args(hint) if member is not types.NoneType)
    return hint


def type_text(kind: Any, meta: Meta) -> str:  # noqa: ANN401 - a type
    if choices := choices_of(kind):
        *others, last = (f"`{choice}`" for choice in choices)
        return f"{', '.join(others)} or {last}" if others else last
    if typing.get_origin(kind) is Mapping:
        return "table of tables"
    if typing.get_origin(kind) in {dict, tuple}:
        return "tables" if typing.get_origin(kind) is dict else "texts"
    if _is_table(kind):
        return "table"
    lengths = {int: "whole seconds", float: "seconds"} if _is_length(kind, meta) else {}
    names = {str: "text", Path: "path", int: "whole number", float: "number", SecretName: "`env:NAME` or `file:PATH`"}
    limits = f", {meta.ge} to {meta.le}" if meta.ge is not None and meta.le is not None else ""
    return (names | lengths)[kind] + limits


def choices_of(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a type
    return ("on", "off") if kind is bool else typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def convert(setting: Setting, given: Given) -> Any:  # noqa: ANN401 - of the setting's type
    """Converts a text or a TOML value. Paths in a file are relative to that file. Commas separate texts of a list.

    Raises:
        SettingsError: The value is invalid; the text names the setting, the source of the value, and the reason.
    """
    value, kind, meta = given.value, setting.kind, setting.meta
    if {"on", "off"}.issubset(choices_of(kind)):
        value = _normalize_switch(value, kind)
    try:
        if kind is SecretName:
            return SecretName.parse(msgspec.convert(value, str), given.base)
        if kind is Path:
            text = msgspec.convert(value, Annotated[str, Meta(min_length=1)])
            return (given.base or Path()) / Path(text).expanduser()
        if isinstance(value, str) and setting.seconds:
            value = parse_duration(value)
        elif isinstance(value, str) and typing.get_origin(kind) is tuple:
            value = [part.strip() for part in value.split(",") if part.strip()]
        return msgspec.convert(value, Annotated[kind, meta], strict=not isinstance(given.value, str))
    except ValueError as error:
        limits = (meta.ge is None) == (meta.le is None) and meta.gt is None
        is_described = typing.get_origin(kind) is Literal or (kind in {int, float, bool} and limits)
        reason = f"Expected: {setting.type.replace('`', '')}" if is_described else str(error).removesuffix(".")
        shown = masked_text(setting.name, given.value) if isinstance(given.value, str) else given.value
        raise SettingsError(f"Setting {setting.name} (from {given.source}) is {shown!r}. {reason}.") from error


def _normalize_switch(value: Any, kind: Any) -> Any:  # noqa: ANN401 - a text or a TOML value, and a type
    """Spells a switch true or false for ``bool``, else on or off. Other values stay as they are."""
    text = _SWITCHES.get(value.lower(), value.lower()) if isinstance(value, str) else value
    if kind is bool:
        return text
    try:
        return "on" if msgspec.convert(text, bool, strict=False) else "off"
    except msgspec.ValidationError:
        return value


def masked_text(name: str, value: object) -> str:
    if value is None:
        return ""
    if name in _SECRETS and not isinstance(value, SecretName):
        return "***"
    if name == "users" and isinstance(value, Mapping):
        return msgspec.json.encode(value).decode() if value else ""
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
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _bracket(value: object) -> str:
    text = as_text(value)
    return f"[{text}]" if isinstance(value, Mapping | msgspec.Struct) else text


@dataclass(frozen=True)
class SecretName:
    """The place of a secret: ``env:NAME`` or ``file:PATH``.

    Attributes:
        kind: ``env`` for an environment variable, ``file`` for the first line of a file.
        name: Name of the variable, or path of the file.
    """

    kind: Literal["env", "file"]
    name: str

    @classmethod
    def parse(cls, text: str, base: Path | None = None) -> SecretName:
        """Parses the text form; a path is relative to ``base``.

        Raises:
            ValueError: The text has another form. The error does not contain the text, which may be the secret itself.
        """
        kind, _, name = text.partition(":")
        if kind == "env" and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            return cls("env", name)
        if kind == "file" and name:
            return cls("file", str((base or Path()) / Path(name).expanduser()))
        raise ValueError("Expected env:NAME or file:PATH: the name of the secret, not the secret")

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, environ: Mapping[str, str]) -> str:
        """Returns the secret.

        Raises:
            SettingsError: The variable is not set, or the file cannot be read or is empty.
        """
        if self.kind == "env":
            secret = environ.get(self.name, "")
        else:
            try:
                secret = Path(self.name).read_text("utf-8").partition("\n")[0].rstrip("\r")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                raise SettingsError(f"The secret {self} cannot be read: {reason}.") from error
        if not secret:
            raise SettingsError(f"The secret {self} is {'not set' if self.kind == 'env' else 'empty'}.")
        return secret
