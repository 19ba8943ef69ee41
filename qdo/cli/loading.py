"""Where the values of settings come from: command line, environment, file, default."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdo.cli.settings import WorkSetting, WorkSettings, table
from queuey.terminal import time_parsing
from queuey.terminal.setting_values import Given, SettingsError, check_known, convert, file_values

CONFIG = "QDO_CONFIG"
_PREFIX = "QDO_"
_HIGHEST_PORT = 65_535


def load(options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> WorkSettings:
    """Reads the settings.

    Args:
        options: Values of the command line by name, texts or lists of them; None: not given.
        environ: The environment. Empty variables count as not given.
        config: The TOML file that the command line names, instead of the one that the environment names.

    Raises:
        SettingsError: Names the key, what is wrong with it, and where it came from.
    """
    lines = table()
    path = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    given = {} if path is None else _from_file(path, lines)
    variables = {line.variable: name for name, line in lines.items()}
    for variable in sorted(name for name, text in environ.items() if name.startswith(_PREFIX) and text):
        check_known(variable, [*variables, CONFIG], "in the environment")
    given |= {name: Given(environ[variable], variable) for variable, name in variables.items() if environ.get(variable)}
    given |= {name: Given(value, lines[name].option) for name, value in options.items() if value not in (None, [])}
    settings = WorkSettings(**{name: _convert(lines[name], one) for name, one in given.items()})
    _check(settings, {name: one.source for name, one in given.items()})
    return settings


def _from_file(path: Path, lines: Mapping[str, WorkSetting]) -> dict[str, Given]:
    values = file_values(path)
    for name in values:
        check_known(name, lines, f"in {path}")
        if lines[name].secret:
            raise SettingsError(
                f"{path} holds {name}, which is a secret: it belongs in a profile, or in {lines[name].variable}."
            )
    return {name: Given(value, str(path), path.parent) for name, value in values.items()}


def _convert(line: WorkSetting, given: Given) -> Any:  # noqa: ANN401 - a setting's type
    """Converts a text, a list of texts or a TOML value."""
    text = given.value
    if not isinstance(text, str):
        return convert(line.name, line.kind, line.meta, given, line.shown, wanted=line.type, strict=True)
    if line.kind is float:
        try:
            given = given._replace(value=time_parsing.duration(text))
        except ValueError as error:
            raise SettingsError(f"Setting {line.name} (from {given.source}) is {text!r}. {error}") from error
    elif typing.get_origin(line.kind) is tuple:
        given = given._replace(value=[part.strip() for part in text.split(",") if part.strip()])
    return convert(line.name, line.kind, line.meta, given, line.shown, wanted=line.type)


def _check(settings: WorkSettings, sources: Mapping[str, str]) -> None:
    """Refuses values that contradict each other."""

    def refuse(reason: str, *names: str) -> None:
        where = ", ".join(f"{name} from {sources.get(name, 'default')}" for name in names)
        raise SettingsError(f"{reason} ({where})")

    if settings.threads is not None and settings.processes is not None:
        refuse("a worker uses threads or processes, not both", "threads", "processes")
    if settings.time_limit is not None and settings.threads is not None:
        refuse("a thread cannot be stopped, so there is no time limit for threads", "time_limit", "threads")
    if settings.metrics is not None and int(settings.metrics.rpartition(":")[2]) > _HIGHEST_PORT:
        refuse(f"the port of the metrics is above {_HIGHEST_PORT}", "metrics")
    if settings.retry_base > settings.retry_cap:
        refuse("the first pause is longer than the longest", "retry_base", "retry_cap")
