"""The settings of ``qdo``: name, type, help and default, in the order of the help.

Values come from the command line, the environment, a file, or the defaults, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from qdo.settings import ConsumerSettings, Retry, WorkerSettings
from queuey.settings.setting_values import (
    Given,
    Setting,
    SettingsError,
    check_known,
    convert,
    list_settings,
    option_of,
    read_sources,
    variables_with_prefix,
)

SERVICE = ("url", "app", "key", "profile", "ca")
POSITIONAL, _SECRET = "handler", "key"
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


S = TypeVar("S", bound=msgspec.Struct)
_STRUCTS: tuple[type[msgspec.Struct], ...] = (WorkSettings, ConsumerSettings, WorkerSettings, Retry)


def variable_of(name: str) -> str:
    return ("QUEUEY_" if name in SERVICE else _PREFIX) + name.upper()


@cache
def table() -> dict[str, Setting]:
    lines = {setting.name: setting for struct in _STRUCTS for setting in list_settings(struct)}
    settings = {}
    for panel, names in _PANELS.items():
        for name in names.split():
            line = lines[_FIELDS.get(name, name)]
            default = _DEFAULTS.get(name, line.default.strip("`"))
            settings[name] = line._replace(name=name, default=default, group=panel, variable=variable_of(name))
    return settings


def make_settings(values: Mapping[str, Any]) -> WorkSettings:
    fields = {_FIELDS.get(name, name): value for name, value in values.items()}

    def make(struct: type[S], **parts: object) -> S:
        return struct(**parts, **{name: fields[name] for name in struct.__struct_fields__ if name in fields})

    return make(WorkSettings, consumer=make(ConsumerSettings), worker=make(WorkerSettings, retry=make(Retry)))


CONFIG_VARIABLE = "QDO_CONFIG"
_PREFIX = "QDO_"
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
    given = read_sources(lines, options, environ, config, config_variable=CONFIG_VARIABLE, option=_option_of)
    for variable in variables_with_prefix(environ, _PREFIX):
        check_known(variable, [*(line.variable for line in lines.values()), CONFIG_VARIABLE], "in the environment")
    for name, value in given:
        check_known(name, lines, f"in {value.source}")
        if name == _SECRET and value.base is not None:
            place = f"move it to a profile, or to {lines[name].variable}"
            raise SettingsError(f"{value.source} holds {name}, which is a secret: {place}.")
    sources = dict(given)
    values = {name: convert(lines[name], value) for name, value in sources.items()}
    _check_combinations({name: line.preset for name, line in lines.items()} | values, sources)
    return make_settings(values)


def _option_of(name: str) -> str:
    return name.upper() if name == POSITIONAL else option_of(name)


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
