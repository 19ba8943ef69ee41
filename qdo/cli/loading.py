"""Where the values of settings come from: command line, environment, file, default."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdo.cli.settings import WorkSetting, WorkSettings, made, table
from queuey.terminal.setting_values import Given, SettingsError, check_known, convert, file_values, own_variables

CONFIG = "QDO_CONFIG"
_PREFIX = "QDO_"
_CLIENT_PREFIX = "QUEUEY_"
_HIGHEST_PORT = 65_535


def load(options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> WorkSettings:
    """Reads the settings.

    Args:
        options: Values of the command line by name, texts or lists of them; None: not given.
        environ: The environment. Empty variables count as not given.
        config: The TOML file that the command line names; None: the one that the environment names.

    Raises:
        SettingsError: Names the key, the problem, and the source of the value.
    """
    lines = table()
    path = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    given = {} if path is None else _from_file(path, lines)
    variables = {line.variable: name for name, line in lines.items()}
    ours = own_variables(environ, _PREFIX)
    for variable in sorted(ours):
        check_known(variable, [*variables, CONFIG], "in the environment")
    ours |= own_variables(environ, _CLIENT_PREFIX)
    given |= {name: Given(ours[variable], variable) for variable, name in variables.items() if variable in ours}
    given |= {name: Given(value, lines[name].option) for name, value in options.items() if value not in (None, [])}
    values = {name: _convert(lines[name], one) for name, one in given.items()}
    _check({name: line.initial for name, line in lines.items()} | values, given)
    return made(values)


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
    text = given.value
    if not isinstance(text, str):
        return convert(line.name, line.kind, line.meta, given, line.shown, wanted=line.type, strict=True)
    if typing.get_origin(line.kind) is tuple:
        given = given._replace(value=[part.strip() for part in text.split(",") if part.strip()])
    return convert(line.name, line.kind, line.meta, given, line.shown, wanted=line.type, seconds=line.seconds)


def _check(values: Mapping[str, Any], given: Mapping[str, Given]) -> None:
    """Raises SettingsError for values that contradict each other."""

    def refuse(reason: str, *names: str) -> None:
        where = ", ".join(f"{name} from {given[name].source if name in given else 'default'}" for name in names)
        raise SettingsError(f"{reason} ({where})")

    if "threads" in given and values["processes"]:
        refuse("a worker uses threads or processes, not both", "threads", "processes")
    if "threads" in given and values["time_limit"] is not None:
        refuse("a thread cannot be stopped, so there is no time limit for threads", "time_limit", "threads")
    if values["metrics"] is not None and int(values["metrics"].rpartition(":")[2]) > _HIGHEST_PORT:
        refuse(f"the port of the metrics is above {_HIGHEST_PORT}", "metrics")
    if values["retry_base"] > values["retry_cap"]:
        refuse("the first pause is longer than the longest", "retry_base", "retry_cap")
