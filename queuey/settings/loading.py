"""Where values come from: command line, environment, file, default."""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from queuey.errors import SettingsError
from queuey.settings.checks import check
from queuey.settings.definitions import Settings
from queuey.settings.secret_names import SecretName
from queuey.settings.table import DEFAULT_SOURCE, PREFIX, Setting, bare, shown, table

CONFIG = PREFIX + "CONFIG"
OTHER_VARIABLES = frozenset({CONFIG, PREFIX + "URL", PREFIX + "KEY", PREFIX + "APP", PREFIX + "CA"})
"""Variables of ours that are no settings: they say which service the command line speaks to."""
_SWITCHES = {"on": "true", "off": "false", "yes": "true", "no": "false"}


class Loaded(NamedTuple):
    """The settings in force, and where each value came from."""

    settings: Settings
    sources: dict[str, str]


def load(options: Mapping[str, str | None], environ: Mapping[str, str], *, config: Path | None = None) -> Loaded:
    """Reads the settings.

    Args:
        options: Values of the command line by setting name; None: not given.
        environ: The environment. Empty variables count as not given.
        config: The TOML file that the command line names.

    Raises:
        SettingsError: Names the key, what is wrong with it, and where it came from.
    """
    lines = {line.name: line for line in table()}
    given: dict[str, tuple[Any, str, Path | None]] = {}
    path = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    if path is not None:
        for name, value in _read_file(path).items():
            _known(name, name in lines, lines, f"in {path}")
            given[name] = (value, str(path), path.parent)
    variables = {line.variable: line.name for line in lines.values()}
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX) and text}
    for variable in ours.keys() & variables.keys():
        given[variables[variable]] = (ours[variable], variable, None)
    for name, option in options.items():
        if option is not None:
            given[name] = (option, lines[name].option, None)
    values: dict[str, Any] = {
        name: _convert(lines[name], value, source, base) for name, (value, source, base) in given.items()
    }
    secrets = {value.name for value in values.values() if isinstance(value, SecretName)}
    for variable in sorted(ours.keys() - OTHER_VARIABLES - secrets):
        _known(variable, variable in variables, variables, "in the environment")
    sources = {name: given[name][1] if name in given else DEFAULT_SOURCE for name in lines}
    settings = Settings(**values)
    check(settings, sources)
    return Loaded(settings, sources)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} is not TOML: {error}.") from error


def _known(key: str, known: bool, names: Mapping[str, object], where: str) -> None:  # noqa: FBT001 - a guard
    if known:
        return
    close = difflib.get_close_matches(key, names, n=1)
    hint = f" Is {close[0]} meant?" if close else ""
    raise SettingsError(f"Unknown setting {key} {where}.{hint}")


def _convert(line: Setting, value: object, source: str, base: Path | None) -> object:
    """Converts a text or a TOML value. Paths in a file are relative to that file."""
    kind, meta = bare(line.hint), line.hint.__metadata__[0]
    if isinstance(value, str) and kind is bool:
        value = _SWITCHES.get(value.lower(), value.lower())
    try:
        if kind in {Path, SecretName}:
            return _place(kind, value, base)
        return msgspec.convert(value, Annotated[kind, meta], strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        choices = f" Choose from {', '.join(typing.get_args(kind))}." if typing.get_args(kind) else ""
        shown_value = shown(line.name, value)
        raise SettingsError(f"Setting {line.name} (from {source}) is {shown_value!r}. {error}.{choices}") from error


def _place(kind: object, value: object, base: Path | None) -> Path | SecretName:
    if not isinstance(value, str) or not value:
        raise ValueError("Expected a text")
    if kind is SecretName:
        return SecretName.parse(value, base)
    return (base or Path()) / Path(value).expanduser()
