"""Where the values of settings come from: command line, environment, file, default."""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from qdo.cli.settings import WorkSetting, WorkSettings, table
from qdo.errors import InvalidArgument
from queuey.terminal import time_parsing

CONFIG = "QDO_CONFIG"
_PREFIX = "QDO_"
_HIGHEST_PORT = 65_535
_SWITCHES = {"on": True, "off": False, "yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}


class _Given(NamedTuple):
    value: Any
    source: str
    base: Path
    """What a relative path is relative to."""


def load(options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> WorkSettings:
    """Reads the settings.

    Args:
        options: Values of the command line by name, texts or lists of them; None: not given.
        environ: The environment. Empty variables count as not given.
        config: The TOML file that the command line names, instead of the one that the environment names.

    Raises:
        InvalidArgument: Names the key, what is wrong with it, and where it came from.
    """
    lines = table()
    path = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    given = {} if path is None else _from_file(path, lines)
    given |= _from_environment(environ, lines)
    given |= {
        name: _Given(value, lines[name].option, Path()) for name, value in options.items() if value not in (None, [])
    }
    sources = {name: one.source for name, one in given.items()}
    settings = WorkSettings(**{name: _convert(lines[name], one) for name, one in given.items()})
    _check(settings, sources)
    return settings


def _from_file(path: Path, lines: Mapping[str, WorkSetting]) -> dict[str, _Given]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"the settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the settings file {path} is not TOML: {error}") from error
    _all_known(values, lines, f"in {path}")
    for name in values:
        if lines[name].secret:
            raise InvalidArgument(
                f"{path} holds {name}, which is a secret: it belongs in a profile, or in {lines[name].variable}"
            )
    return {name: _Given(value, str(path), path.parent) for name, value in values.items()}


def _from_environment(environ: Mapping[str, str], lines: Mapping[str, WorkSetting]) -> dict[str, _Given]:
    variables = {line.variable: name for name, line in lines.items()}
    ours = {name for name, text in environ.items() if name.startswith(_PREFIX) and text and name != CONFIG}
    _all_known(sorted(ours), variables, "in the environment")
    return {
        name: _Given(environ[variable], variable, Path())
        for variable, name in variables.items()
        if environ.get(variable)
    }


def _all_known(keys: Iterable[str], known: Mapping[str, object], where: str) -> None:
    for key in keys:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; is {close[0]} meant?" if close else ""
            raise InvalidArgument(f"unknown setting {key} {where}{hint}")


def _convert(line: WorkSetting, given: _Given) -> Any:  # noqa: ANN401 - a setting's type
    """Converts a text, a list of texts or a TOML value."""
    value = given.value
    try:
        if line.kind is Path:
            return given.base / Path(msgspec.convert(value, str)).expanduser()
        if isinstance(value, str):
            value = _from_text(line.kind, value)
        return msgspec.convert(value, Annotated[line.kind, line.meta], strict=not isinstance(given.value, str))
    except (msgspec.ValidationError, ValueError) as error:
        choices = (
            f"; choose from {', '.join(typing.get_args(line.kind))}"
            if typing.get_origin(line.kind) is typing.Literal
            else ""
        )
        said = "" if line.secret else f" is {value!r}"
        raise InvalidArgument(f"setting {line.name} (from {given.source}){said}: {error}{choices}") from error


def _from_text(kind: Any, text: str) -> Any:  # noqa: ANN401 - a setting's type
    if kind is bool:
        return _SWITCHES.get(text.lower(), text)
    if kind is float:
        return time_parsing.duration(text)
    if typing.get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _check(settings: WorkSettings, sources: Mapping[str, str]) -> None:
    """Refuses values that contradict each other."""

    def refuse(reason: str, *names: str) -> None:
        where = ", ".join(f"{name} from {sources.get(name, 'default')}" for name in names)
        raise InvalidArgument(f"{reason} ({where})")

    if settings.threads is not None and settings.processes is not None:
        refuse("a worker uses threads or processes, not both", "threads", "processes")
    if settings.time_limit is not None and settings.threads is not None:
        refuse("a thread cannot be stopped, so there is no time limit for threads", "time_limit", "threads")
    if settings.metrics is not None and int(settings.metrics.rpartition(":")[2]) > _HIGHEST_PORT:
        refuse(f"the port of the metrics is above {_HIGHEST_PORT}", "metrics")
    if settings.retry_base > settings.retry_cap:
        refuse("the first pause is longer than the longest", "retry_base", "retry_cap")
