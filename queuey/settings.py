"""The settings: one table, read once at start-up.

A value comes from the first of these that has it: the command line (``--max-body``), the environment
(``QUEUEY_MAX_BODY``), the TOML file (``max_body``) that ``--config`` or ``QUEUEY_CONFIG`` names, the default.
A key that is not in the table, a value that does not fit its type and values that contradict each other
refuse to start.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from queuey.errors import SettingsError
from queuey.messages import DEFAULT_TTL, MAX_TTL

PREFIX = "QUEUEY_"
CONFIG = PREFIX + "CONFIG"
OTHER_VARIABLES = frozenset({CONFIG, PREFIX + "URL", PREFIX + "KEY", PREFIX + "APP", PREFIX + "CA"})
"""Variables of ours that are no settings: they say which service the command line speaks to."""

DEFAULT_SOURCE = "default"
_SWITCHES = {"on": "true", "off": "false", "yes": "true", "no": "false"}
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


def data_directory() -> Path:
    """Returns where the data is kept unless a setting says otherwise."""
    import platformdirs  # noqa: PLC0415 - only a start without --data pays for it

    return Path(platformdirs.user_data_dir("queuey", appauthor=False))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of the service: its name, type, help and default, in the order they are shown."""

    data: Annotated[
        Path,
        Meta(
            description="Directory of the store. Made at the first start.",
            extra={"default": "`queuey` in the user's data directory"},
        ),
    ] = msgspec.field(default_factory=data_directory)
    store: Annotated[str, Meta(description="Where messages are kept: `sqlite`, a file in `data`.")] = "sqlite"
    sync: Annotated[
        Literal["full", "normal"],
        Meta(
            description="What an acknowledgement means. `full`: the message is on the disk and survives a "
            "power cut; `normal`, faster: a power cut may take the last moments, a crash of the service none."
        ),
    ] = "full"
    busy_timeout: Annotated[
        float, Meta(description="Seconds to wait for another process's write lock.", ge=0.1, le=60)
    ] = 5.0
    deadline: Annotated[float, Meta(description="Seconds after which a call to the store gives up.", ge=1, le=120)] = (
        15.0
    )
    readers: Annotated[int, Meta(description="Connections of a worker for reading; more reads wait.", ge=1, le=64)] = 4
    profile: Annotated[
        Path | None,
        Meta(
            description="File with the URL and the key, for the command line and the client; mode 0600.",
            extra={"default": "`queuey/profile.toml` in the user's configuration directory"},
        ),
    ] = None

    host: Annotated[str, Meta(description="Address to listen on.", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(description="TCP port; 0 takes a free one.", ge=0, le=65535)] = 5000
    workers: Annotated[int, Meta(description="Worker processes, each with its own store.", ge=1, le=64)] = 1
    threads: Annotated[
        int,
        Meta(
            description="Requests that a worker handles at the same time in threads; small posts need none.",
            ge=1,
            le=1024,
        ),
    ] = 8
    connections: Annotated[
        int,
        Meta(
            description="Connections that a worker keeps open, idle ones included; further ones wait.",
            ge=1,
            le=65536,
        ),
    ] = 1024
    tls_cert: Annotated[Path | None, Meta(description="Certificate chain (PEM). With `tls_key`: serve https.")] = None
    tls_key: Annotated[Path | None, Meta(description="Private key (PEM) of `tls_cert`.")] = None
    shutdown_timeout: Annotated[
        float,
        Meta(
            description="Seconds that a stop may take; requests under way are finished within it.",
            ge=1,
            le=3600,
        ),
    ] = 10.0

    max_body: Annotated[int, Meta(description="Largest message body in bytes.", ge=1, le=1 << 30)] = 262_144
    max_batch: Annotated[int, Meta(description="Most messages in one batch.", ge=1, le=100_000)] = 1000
    max_batch_bytes: Annotated[
        int, Meta(description="Largest request with several messages in bytes.", ge=1, le=1 << 30)
    ] = 8_388_608
    max_ids: Annotated[int, Meta(description="Most message ids in one request.", ge=1, le=100_000)] = 1000
    max_queue_name: Annotated[int, Meta(description="Longest queue name in characters.", ge=1, le=1_000)] = 50
    max_message_key: Annotated[int, Meta(description="Longest message key in characters.", ge=1, le=4_096)] = 256
    max_principals: Annotated[int, Meta(description="Most principals of one queue.", ge=0, le=10_000)] = 100
    max_headers: Annotated[int, Meta(description="Most headers kept with one message.", ge=0, le=1_000)] = 16
    max_header_bytes: Annotated[
        int, Meta(description="Their names and values together, in bytes.", ge=0, le=1 << 20)
    ] = 8192
    max_content_type: Annotated[int, Meta(description="Longest content type in characters.", ge=1, le=4_096)] = 200
    max_wait: Annotated[float, Meta(description="Longest long poll in seconds; 0 turns them off.", ge=0, le=300)] = 20.0
    wait_slots: Annotated[
        int,
        Meta(
            description="Long polls that a worker holds at the same time; further ones get 503.",
            ge=0,
            le=1_024,
        ),
    ] = 16
    default_limit: Annotated[
        int, Meta(description="Messages per partition when a read names no limit.", ge=1, le=100_000)
    ] = 100
    max_limit: Annotated[
        int, Meta(description="Most messages per partition that a read may ask for.", ge=1, le=100_000)
    ] = 1000
    page_bytes: Annotated[
        int, Meta(description="Bytes of message bodies after which an answer ends.", ge=1, le=1 << 30)
    ] = 8_388_608
    max_queues_per_read: Annotated[int, Meta(description="Most queues in one read.", ge=1, le=10_000)] = 100
    default_list: Annotated[int, Meta(description="Queues in a listing that names no limit.", ge=1, le=100_000)] = 1000
    max_list: Annotated[int, Meta(description="Most queues that a listing may ask for.", ge=1, le=100_000)] = 10_000
    default_ttl: Annotated[
        int, Meta(description="Seconds that a message lives when neither it nor its queue says.", ge=1, le=MAX_TTL)
    ] = DEFAULT_TTL

    metrics: Annotated[bool, Meta(description="Serve Prometheus metrics at `/metrics`.")] = True
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe log record to write.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="`text` for people; `json`: one object a line."),
    ] = "text"


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


class Loaded(NamedTuple):
    """The settings in force, and where each value came from."""

    settings: Settings
    sources: dict[str, str]


def table() -> list[Setting]:
    """Returns the table, one line a setting."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    lines = []
    for field in msgspec.structs.fields(Settings):
        meta: Meta = hints[field.name].__metadata__[0]
        default = (meta.extra or {}).get("default") or f"`{_text(field.default)}`"
        kind = _type_text(hints[field.name].__origin__, meta)
        default = "" if default == "`None`" else default
        lines.append(Setting(field.name, kind, default, meta.description or "", hints[field.name]))
    return lines


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
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES and text:
            _known(variable, variable in variables, variables, "in the environment")
            given[variables[variable]] = (text, variable, None)
    for name, option in options.items():
        if option is not None:
            given[name] = (option, lines[name].option, None)
    values: dict[str, Any] = {
        name: _convert(lines[name], value, source, base) for name, (value, source, base) in given.items()
    }
    sources = {name: given[name][1] if name in given else DEFAULT_SOURCE for name in lines}
    settings = Settings(**values)
    _check(settings, sources)
    return Loaded(settings, sources)


def part(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    """Returns those of ``names`` that are settings, with their values: what a part of the service is made with."""
    return {name: getattr(settings, name) for name in names if name in settings.__struct_fields__}


def shown(name: str, value: object) -> str:
    """Returns a value as it may be printed: never with a password in it."""
    text = "" if value is None else _text(value)
    return _PASSWORD.sub(r"\1:***@", text) if name == "store" else text


def as_markdown() -> str:
    """Returns ``docs/settings.md``."""
    rows = "\n".join(
        f"| `{line.name}` | {line.type} | {line.default} | {line.help.replace('|', chr(92) + '|')} |"
        for line in table()
    )
    return _PAGE.format(rows=rows)


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

    def hook(kind: type, raw: object) -> object:
        if kind is Path and isinstance(raw, str) and raw:
            return (base or Path()) / Path(raw).expanduser()
        raise ValueError("Expected a path")

    if isinstance(value, str) and bool in _kinds(line.hint):
        value = _SWITCHES.get(value.lower(), value.lower())
    try:
        if None.__class__ in _kinds(line.hint):
            # A path or nothing: msgspec would read the text "null" as nothing.
            return hook(Path, value)
        return msgspec.convert(value, line.hint, strict=False, dec_hook=hook)
    except (msgspec.ValidationError, ValueError) as error:
        raise SettingsError(f"Setting {line.name} (from {source}) is {shown(line.name, value)!r}. {error}.") from error


def _kinds(hint: object) -> tuple[object, ...]:
    bare = typing.get_args(hint)[0]
    return typing.get_args(bare) or (bare,)


def _check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Refuses values that contradict each other."""

    def refuse(message: str, *names: str) -> None:
        where = ", ".join(f"{name} from {sources[name]}" for name in names)
        raise SettingsError(f"{message} ({where})")

    scheme = settings.store.partition(":")[0]
    if settings.store != "sqlite":
        reason = "it takes its directory from data" if scheme == "sqlite" else f"{scheme!r} is not known"
        refuse(f"Setting store can only be 'sqlite': {reason}.", "store")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        given = "tls_cert" if settings.tls_key is None else "tls_key"
        refuse(f"Setting {given} needs {missing} beside it.", given)
    if settings.connections < settings.threads:
        refuse("Setting connections must not be below threads.", "connections", "threads")
    if settings.max_batch_bytes < settings.max_body:
        refuse("Setting max_batch_bytes must not be below max_body.", "max_batch_bytes", "max_body")
    if settings.max_limit < settings.default_limit:
        refuse("Setting max_limit must not be below default_limit.", "max_limit", "default_limit")
    if settings.max_list < settings.default_list:
        refuse("Setting max_list must not be below default_list.", "max_list", "default_list")
    if settings.deadline <= settings.busy_timeout:
        refuse("Setting deadline must be above busy_timeout.", "deadline", "busy_timeout")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _type_text(kind: object, meta: Meta) -> str:
    args = [arg for arg in typing.get_args(kind) if arg is not None.__class__]
    if args and isinstance(args[0], str):
        return " or ".join(f"`{arg}`" for arg in args)
    names = {Path: "path", str: "text", int: "whole number", float: "number", bool: "`on` or `off`"}
    name = names[args[0] if args else kind]  # type: ignore[index]
    return f"{name}, {meta.ge} to {meta.le}" if meta.ge is not None and meta.le is not None else name


_PAGE = """\
# Settings

Each setting of `queuey serve` can be given in four places. The first that has it wins:

1. the command line: `--max-body 65536`
2. the environment: `QUEUEY_MAX_BODY=65536` (an empty variable counts as not given)
3. a TOML file that `--config` or `QUEUEY_CONFIG` names: `max_body = 65536` (paths in it are relative to it)
4. the default

Unknown names, values that do not fit and values that contradict each other refuse to start; the message
says where the value came from. `queuey settings` shows every value in force and its source.

| name | type | default | meaning |
|---|---|---|---|
{rows}

`threads`, `connections` and `wait_slots` are per worker.
"""
