"""Where values come from: command line, environment, file, default."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from queuey.errors import SettingsError
from queuey.extras import DISTRIBUTION
from queuey.settings.checks import check
from queuey.settings.definitions import Settings
from queuey.settings.rooms import OWN, installed
from queuey.settings.secret_names import SecretName
from queuey.settings.table import DEFAULT_SOURCE, PREFIX, Setting, as_text, option_of, shown, table, variable_of
from queuey.settings.users import Users, read_users
from queuey.terminal.setting_values import Given, check_known, convert, file_values, own_variables

CONFIG = PREFIX + "CONFIG"
OTHER_VARIABLES = frozenset(
    {CONFIG, PREFIX + "URL", PREFIX + "KEY", PREFIX + "APP", PREFIX + "CA", PREFIX + "TOKEN_FILE"}
)
"""Variables of ours that are no settings: they say which service the command line speaks to."""


class Loaded(NamedTuple):
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
    path = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    ours = own_variables(environ, PREFIX)
    variables = {variable_of(name): name for name in lines}
    # The nearest place comes last.
    given = [
        *([] if path is None else _in_file(path, lines)),
        *((name, Given(ours[key], key)) for key, name in variables.items() if key in ours),
        *((name, Given(text, option_of(name))) for name, text in options.items() if text is not None),
    ]
    for name, value in given:
        _check_known(name, lines, f"in {value.source}")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for line in lines.values():
        own = [value for name, value in given if name == line.name]
        if own and line.fields:
            values[line.attribute], sources[line.name] = _merged(line, own)
        elif own:
            values[line.attribute], sources[line.name] = _convert(line, own[-1]), own[-1].source
    secrets = {value.name for value in values.values() if isinstance(value, SecretName)}
    for variable in sorted(ours.keys() - OTHER_VARIABLES - secrets):
        _check_known(variable, variables, "in the environment")
    sources = {name: sources.get(name, DEFAULT_SOURCE) for name in lines}
    rooms = tuple(
        room(**{name: values.pop(name) for name in room.__struct_fields__ if name in values}) for room in installed()
    )
    settings = Settings(**values, rooms=rooms)
    check(settings, sources)
    return Loaded(settings, sources)


def _check_known(key: str, known: Collection[str], where: str) -> None:
    """Refuses an unknown setting or variable.

    Raises:
        SettingsError: Says what is meant, perhaps, or that a part of the service is missing.
    """
    for room in OWN:
        if key in {room, variable_of(room)} and key not in known:
            owner = f"it belongs to the part {room!r} of the service, which is not installed"
            raise SettingsError(f"Unknown setting {key} {where}: {owner}. Install {DISTRIBUTION} again, or remove it.")
    check_known(key, known, where)


def _in_file(path: Path, lines: Mapping[str, Setting]) -> Iterator[tuple[str, Given]]:
    """Reads a settings file. The tables in a table, as ``[consistency.strong]``, are a setting each."""
    owners = {name.rpartition(".")[0] for name in lines} - {""}
    for name, value in file_values(path).items():
        tables = value if name in owners and isinstance(value, dict) else None
        settings = {name: value} if tables is None else {f"{name}.{key}": below for key, below in tables.items()}
        for key, below in settings.items():
            yield key, Given(below, str(path), path.parent)


def _merged(line: Setting, given: Iterable[Given]) -> tuple[msgspec.Struct, str]:
    """Merges a table field by field; the nearest source that names a field wins."""
    nearest = {key: value for place in given for key, value in _fields(line, place)}
    fields = {field.name: field for field in line.fields}
    values = {}
    for key, value in nearest.items():
        check_known(key, fields, f"in {value.source}")
        values[key.rpartition(".")[2]] = _convert(fields[key], value)
    sources = dict.fromkeys(value.source for value in nearest.values())
    return msgspec.structs.replace(line.preset, **values), ", ".join(sources) or DEFAULT_SOURCE


def _fields(line: Setting, given: Given) -> Iterator[tuple[str, Given]]:
    """Splits a table into fields: a TOML table, or a text such as ``write=QUORUM,delay=5``."""
    if isinstance(given.value, dict):
        pairs = list(given.value.items())
    else:
        pieces = [piece.partition("=") for piece in str(given.value).split(",")]
        if not all(equals for _, equals, _ in pieces):
            example = as_text(line.preset)
            raise SettingsError(
                f"Setting {line.name} (from {given.source}) is {given.value!r}. Expected fields as in {example}."
            )
        pairs = [(name.strip(), value.strip()) for name, _, value in pieces]
    for name, value in pairs:
        yield f"{line.name}.{name}", given._replace(value=value)


def _convert(line: Setting, given: Given) -> object:
    """Converts a text or a TOML value. Places in a file are relative to that file."""
    kind, meta = line.kind, line.hint.__metadata__[0]
    try:
        if kind == Users:
            return read_users(given.value, given.base)
        if kind is SecretName:
            return SecretName.parse(msgspec.convert(given.value, str), given.base)
    except (msgspec.ValidationError, ValueError) as error:
        said = "cannot be used" if kind == Users else f"is {shown(line.name, given.value)!r}"
        raise SettingsError(f"Setting {line.name} (from {given.source}) {said}. {error}.") from error
    return convert(line.name, kind, meta, given, shown, wanted=line.type, seconds=line.seconds)
