"""The settings of ``qdo``: name, type, help and default, in the order of the help.

Values come from the command line, the environment, a file, or the defaults, in this order.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from qdo.settings import ConsumerSettings, Retry, WorkerSettings
from queuey.settings.setting_values import (
    Given,
    SettingsError,
    check_known,
    convert,
    file_values,
    type_text,
    variables_with_prefix,
    without_none,
)
from queuey.terminal.struct_options import read_descriptions

SERVICE = ("url", "app", "key", "profile", "ca")
"""Settings that choose the service and the credentials."""
_SECRET, _POSITIONAL = "key", "handler"
_PANELS = {
    "Which service": " ".join(SERVICE),
    "Which messages": "handler queue claim claim_ttl pattern wait_for_queue start",
    "Group": "group coordination session_timeout name grace",
    "Handling": "context threads tasks processes by parallel time_limit stalled_after",
    "When a handler fails": "attempts retry_base retry_cap never_retry on_failure dead_queue dead_ttl",
    "Running": "commit_messages commit_seconds mirror prefetch_messages prefetch_bytes discover revoke_timeout drain "
    "metrics trace log log_level",
}
_FIELDS = {"retry_base": "base", "retry_cap": "cap", "never_retry": "never"}
"""Settings whose name differs from their field in the struct."""
_WHOLE_SECONDS = "dead_ttl"
_DEFAULTS = {
    "processes": "none",
    "by": "one after another",
    "time_limit": "none",
    "dead_queue": "the message's queue with `.dead` appended",
    "dead_ttl": "30d",
}
"""Descriptions of defaults whose values do not speak for themselves."""


class WorkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded settings: those of the command line, and those of the library. Durations are seconds.

    The descriptions of the attributes, also in the library, are the help texts. Brackets after a name describe a
    default whose value does not speak for itself.

    Attributes:
        consumer: Options for :class:`~qdo.ConsumerSettings`.
        worker: Options for :class:`~qdo.WorkerSettings`.
        url (the profile's): URL of the service, or several separated by commas.
        app (the profile's): The application.
        key (the profile's): The API key. Other users of this machine can see it on a command line. Not allowed in a
            settings file: use a profile.
        profile (the user's): File with URL, application and key, as written by `queuey serve`.
        ca (the system's): Certificates to trust (PEM).
        handler: The function that handles a message: `module:function`. Modules of the working directory are found.
        queue: A queue. Can be repeated.
        claim: Claim messages instead of joining a group: each goes to one worker, in no order. Takes up to 10 of
            `queue`, in order of preference.
        claim_ttl: With `claim`: time after which the messages of a dead worker go to another.
        pattern: All queues whose names match, also future ones: `crash-*`, `job-?`. Can be repeated.
        wait_for_queue: Without `pattern`: how long to wait for a queue to exist before exiting with code 1; 0 waits
            forever.
        group: Name of the group. Its members share the partitions.
        coordination (the service): The coordination service of the group, if it is not the service itself:
            `zookeeper://host1,host2`.
        session_timeout (depends on the coordination): Time without a heartbeat after which a member's partitions go to
            others.
        name (a new one at each start): Name of this member, unique in the group and the same after a restart; see
            `grace`.
        context: Factory of the handler's second argument: `module:factory`, called once; see docs/qdo.md.
        metrics (none): Address to serve Prometheus metrics on: `127.0.0.1:9400`. Port 0 takes a free port.
        trace: Send spans to OpenTelemetry; see docs/tasks.md.
        log: Format of the log, which goes to standard error.
        log_level: Min severity of log records.
    """

    consumer: ConsumerSettings = ConsumerSettings()
    worker: WorkerSettings = WorkerSettings()
    url: str | None = None
    app: str | None = None
    key: str | None = None
    profile: Path | None = None
    ca: Path | None = None
    handler: str | None = None
    queue: tuple[str, ...] = ()
    claim: bool = False
    claim_ttl: Annotated[float, Meta(ge=2, le=43_200)] = 30.0
    pattern: tuple[str, ...] = ()
    wait_for_queue: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    group: Annotated[str, Meta(min_length=1)] | None = None
    coordination: Annotated[str, Meta(min_length=1)] | None = None
    session_timeout: Annotated[float, Meta(ge=0.1, le=300)] | None = None
    name: Annotated[str, Meta(min_length=1)] | None = None
    context: str | None = None
    metrics: Annotated[str, Meta(pattern=r"^.+:[0-9]{1,5}$")] | None = None
    trace: bool = False
    log: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


_STRUCTS: tuple[type[msgspec.Struct], ...] = (WorkSettings, ConsumerSettings, WorkerSettings, Retry)


class WorkSetting(NamedTuple):
    """A setting: ``type``, ``default`` and ``help`` are texts for users, ``kind`` and ``meta`` convert values."""

    name: str
    panel: str
    struct: type[msgspec.Struct]
    type: str
    default: str
    help: str
    kind: Any
    meta: Meta
    initial: Any

    @property
    def seconds(self) -> bool:
        return "seconds" in self.type

    @property
    def secret(self) -> bool:
        return self.name == _SECRET

    @property
    def positional(self) -> bool:
        return self.name == _POSITIONAL

    @property
    def option(self) -> str:
        return self.name.upper() if self.positional else "--" + self.name.replace("_", "-")

    def shown(self, _: str, value: object) -> str:
        return "***" if self.secret else str(value)

    @property
    def variable(self) -> str:
        """The environment variable; for the service it is that of the client."""
        return ("QUEUEY_" if self.name in SERVICE else "QDO_") + self.name.upper()


def table() -> dict[str, WorkSetting]:
    """Returns all settings by name, in the order of the help."""
    fields = {field.name: (struct, field) for struct in _STRUCTS for field in msgspec.structs.fields(struct)}
    described = {struct: read_descriptions(struct) for struct in _STRUCTS}
    lines = {}
    for panel, names in _PANELS.items():
        for name in names.split():
            struct, field = fields[_FIELDS.get(name, name)]
            default, text = described[struct][field.name]
            kind, meta = _resolve_kind(struct, field.name)
            seconds = kind is float or name == _WHOLE_SECONDS
            shown_type = "texts" if typing.get_origin(kind) is tuple else type_text(kind, meta, seconds=seconds)
            default = default or _DEFAULTS.get(name) or format_value(field.default)
            lines[name] = WorkSetting(name, panel, struct, shown_type, default, text, kind, meta, field.default)
    return lines


@cache
def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return typing.get_type_hints(struct, include_extras=True)


def _resolve_kind(struct: type[msgspec.Struct], name: str) -> tuple[Any, Meta]:
    hint = without_none(_hints(struct)[name])
    return (hint.__origin__, hint.__metadata__[0]) if typing.get_origin(hint) is Annotated else (hint, Meta())


def make_settings(values: Mapping[str, Any]) -> WorkSettings:
    fields: dict[type[msgspec.Struct], dict[str, Any]] = {struct: {} for struct in _STRUCTS}
    for name, line in table().items():
        if name in values:
            fields[line.struct][_FIELDS.get(name, name)] = values[name]
    worker = WorkerSettings(retry=Retry(**fields[Retry]), **fields[WorkerSettings])
    return WorkSettings(consumer=ConsumerSettings(**fields[ConsumerSettings]), worker=worker, **fields[WorkSettings])


def format_value(value: object) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


CONFIG_VARIABLE = "QDO_CONFIG"
_PREFIX = "QDO_"
_CLIENT_PREFIX = "QUEUEY_"
_MAX_PORT = 65_535


def load(options: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> WorkSettings:
    """Reads the settings.

    Args:
        options: Values of the command line by name: strings or lists of strings, or None if not given.
        environ: The environment. Empty variables count as not given.
        config: The TOML file from the command line; by default the file in the environment variable ``QDO_CONFIG``.

    Raises:
        SettingsError: A name or value is not valid. The message has the source of the value.
    """
    lines = table()
    path = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    sources = {} if path is None else _read_file(path, lines)
    variables = {line.variable: name for name, line in lines.items()}
    ours = variables_with_prefix(environ, _PREFIX)
    for variable in sorted(ours):
        check_known(variable, [*variables, CONFIG_VARIABLE], "in the environment")
    ours |= variables_with_prefix(environ, _CLIENT_PREFIX)
    sources |= {name: Given(ours[variable], variable) for variable, name in variables.items() if variable in ours}
    sources |= {name: Given(value, lines[name].option) for name, value in options.items() if value not in (None, [])}
    values = {name: _convert(lines[name], source) for name, source in sources.items()}
    _check_combinations({name: line.initial for name, line in lines.items()} | values, sources)
    return make_settings(values)


def _read_file(path: Path, settings: Mapping[str, WorkSetting]) -> dict[str, Given]:
    values = file_values(path)
    for name in values:
        check_known(name, settings, f"in {path}")
        if settings[name].secret:
            raise SettingsError(
                f"{path} holds {name}, which is a secret: move it to a profile, or to {settings[name].variable}."
            )
    return {name: Given(value, str(path), path.parent) for name, value in values.items()}


def _convert(setting: WorkSetting, given: Given) -> Any:  # noqa: ANN401 - a setting's type
    """Converts a value to the setting's type. Text is parsed; a list in it is separated by commas."""
    text = given.value
    if not isinstance(text, str):
        return convert(
            setting.name, setting.kind, setting.meta, given, setting.shown, expected=setting.type, strict=True
        )
    if typing.get_origin(setting.kind) is tuple:
        given = given._replace(value=[part.strip() for part in text.split(",") if part.strip()])
    return convert(
        setting.name, setting.kind, setting.meta, given, setting.shown, expected=setting.type, seconds=setting.seconds
    )


def _check_combinations(values: Mapping[str, Any], given: Mapping[str, Given]) -> None:
    def refuse(reason: str, *names: str) -> None:
        where = ", ".join(f"{name} from {given[name].source if name in given else 'default'}" for name in names)
        raise SettingsError(f"{reason} ({where})")

    if "threads" in given and values["processes"]:
        refuse("a worker uses threads or processes, not both", "threads", "processes")
    if "threads" in given and values["time_limit"] is not None:
        refuse("threads cannot be stopped, so they cannot have a time limit", "time_limit", "threads")
    if values["metrics"] is not None and int(values["metrics"].rpartition(":")[2]) > _MAX_PORT:
        refuse(f"the port of the metrics is above {_MAX_PORT}", "metrics")
    if values["retry_base"] > values["retry_cap"]:
        refuse("retry_base is more than retry_cap", "retry_base", "retry_cap")
