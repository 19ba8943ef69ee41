"""Every setting of ``qdo``: its name, type, help and default, in the order they are shown."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

SERVICE = "Which service"
MESSAGES = "Which messages"
GROUP = "Group"
HANDLING = "Handling"
FAILURES = "When a handler fails"
RUNNING = "Running"


def _meta(
    panel: str,
    text: str,
    *,
    default: str | None = None,
    secret: bool = False,
    positional: bool = False,
    **limits: Any,  # noqa: ANN401 - those of any type
) -> Meta:
    extra = {"panel": panel, "default": default, "secret": secret, "positional": positional}
    return Meta(description=text, extra=extra, **limits)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force. Lengths of time are seconds."""

    url: Annotated[
        str | None, _meta(SERVICE, "Address of the service; several with commas.", default="the profile's")
    ] = None
    app: Annotated[str | None, _meta(SERVICE, "The application.", default="the profile's")] = None
    key: Annotated[
        str | None,
        _meta(
            SERVICE,
            "The API key; other users of this machine may see it here. Never in a file: a profile is for that.",
            default="the profile's",
            secret=True,
        ),
    ] = None
    profile: Annotated[
        Path | None, _meta(SERVICE, "File with all three, as written by `queuey serve`.", default="the user's")
    ] = None
    ca: Annotated[Path | None, _meta(SERVICE, "Certificates to trust (PEM).", default="the system's")] = None

    handler: Annotated[
        str | None,
        _meta(HANDLING, "What handles a message: `module:function`, seen from the working directory.", positional=True),
    ] = None
    queue: Annotated[tuple[str, ...], _meta(MESSAGES, "A queue; several may be given.")] = ()
    pattern: Annotated[
        tuple[str, ...],
        _meta(
            MESSAGES,
            "Every queue with such a name, also those to come: `crash-*`, `job-?`; several may be given.",
        ),
    ] = ()
    start: Annotated[
        Literal["earliest", "latest"],
        _meta(
            MESSAGES, "Where a group begins that has no offset yet: with everything that is there, or with what comes."
        ),
    ] = "earliest"

    group: Annotated[
        str | None, _meta(GROUP, "Name of the group; its members share out the partitions.", min_length=1)
    ] = None
    coordination: Annotated[
        str,
        _meta(
            GROUP,
            "Where the members meet: `local:` (processes of this machine and user), `local:///path/to/file`, or "
            "`zookeeper://host1,host2:2181/chroot`.",
            min_length=1,
        ),
    ] = "local:"
    session_timeout: Annotated[
        float | None,
        _meta(
            GROUP,
            "How long a member may be silent before its partitions go to others.",
            default="what suits the coordination",
            ge=0.1,
            le=300,
        ),
    ] = None
    name: Annotated[
        str | None,
        _meta(
            GROUP,
            "A name of this member's own, unique in the group and the same after a restart; see `grace`.",
            default="one that is made up at each start",
            min_length=1,
        ),
    ] = None
    grace: Annotated[
        float,
        _meta(
            GROUP,
            "How long members with a `name` keep their partitions while they are gone; the same for all members.",
            ge=0,
            le=86_400,
        ),
    ] = 0.0
    host: Annotated[
        str | None,
        _meta(
            GROUP,
            "What the group called the service before services had an id, if not host and port of an address: offsets "
            "that it recorded under that name are copied.",
            min_length=1,
        ),
    ] = None

    context: Annotated[
        str | None,
        _meta(
            HANDLING, "What the handler gets as its second argument: `module:factory`, called once; see docs/qdo.md."
        ),
    ] = None
    threads: Annotated[
        int | None,
        _meta(HANDLING, "How many partitions a plain function handles at the same time.", default="8", ge=1, le=1024),
    ] = None
    tasks: Annotated[
        int | None, _meta(HANDLING, "The same for an async function.", default="100", ge=1, le=100_000)
    ] = None
    processes: Annotated[
        int | None,
        _meta(
            HANDLING,
            "Handle in so many processes instead: for handlers that compute, or that need a time limit.",
            default="none",
            ge=1,
            le=256,
        ),
    ] = None
    by: Annotated[
        str | None,
        _meta(
            HANDLING,
            "Handle messages of one partition at the same time, those with the same key in order: `header:NAME` or "
            "`body:FIELD` says what the key is.",
            default="one after another",
            pattern=r"^(header|body):.+$",
        ),
    ] = None
    parallel: Annotated[
        int, _meta(HANDLING, "With `by`: how many of one partition at the same time.", ge=1, le=10_000)
    ] = 8
    time_limit: Annotated[
        float | None,
        _meta(
            HANDLING,
            "How long one attempt may take. For async functions and `processes`: a thread cannot be stopped.",
            default="none",
            gt=0,
        ),
    ] = None
    stalled_after: Annotated[
        float,
        _meta(
            HANDLING,
            "How long a message may be in hand; then its attempt has failed. A thread cannot be stopped, so its worker "
            "hands its partitions back and joins again.",
            ge=0.1,
            le=86_400,
        ),
    ] = 300.0

    attempts: Annotated[
        int, _meta(FAILURES, "How often a message is tried before it has failed; 0: without end.", ge=0, le=1_000_000)
    ] = 5
    retry_base: Annotated[
        float,
        _meta(FAILURES, "Longest pause after the first attempt; it doubles with each. Drawn evenly from 0.", ge=0),
    ] = 0.5
    retry_cap: Annotated[float, _meta(FAILURES, "Longest pause after any attempt.", ge=0, le=86_400)] = 60.0
    never_retry: Annotated[
        tuple[str, ...],
        _meta(FAILURES, "Class of an error that another attempt does not help: `ValueError`; several may be given."),
    ] = ()
    on_failure: Annotated[
        Literal["dead-letter", "skip", "stop", "retry"],
        _meta(
            FAILURES,
            "What becomes of a message that has failed: `dead-letter` keeps it in `<queue>.dead`, `skip` only "
            "logs it, `stop` ends the worker without marking it, `retry` goes on trying.",
        ),
    ] = "dead-letter"
    dead_queue: Annotated[
        str | None,
        _meta(FAILURES, "Queue for dead letters.", default="the message's queue with `.dead` behind", min_length=1),
    ] = None
    dead_ttl: Annotated[
        float, _meta(FAILURES, "How long dead letters are kept.", default="30d", ge=1, le=33_554_432)
    ] = 2_592_000.0

    commit_messages: Annotated[
        int, _meta(RUNNING, "Handled messages after which progress is recorded.", ge=1, le=1_000_000)
    ] = 5000
    commit_seconds: Annotated[
        float, _meta(RUNNING, "Time after which it is recorded if there were fewer.", ge=0.001, le=3600)
    ] = 1.0
    mirror: Annotated[
        bool, _meta(RUNNING, "Record progress with the service too, so that `queuey offsets show` knows it.")
    ] = False
    prefetch_messages: Annotated[
        int, _meta(RUNNING, "Messages that may be held in advance, over all partitions.", ge=1, le=1_000_000)
    ] = 5000
    prefetch_bytes: Annotated[int, _meta(RUNNING, "The same in bytes of their bodies.", ge=1, le=1 << 40)] = 16 << 20
    discover: Annotated[
        float, _meta(RUNNING, "Time between two looks for new queues and partitions.", ge=0.01, le=3600)
    ] = 30.0
    revoke_timeout: Annotated[
        float,
        _meta(
            RUNNING,
            "How long a partition that is to move waits for its message in hand; what takes longer is handled again by "
            "the next owner.",
            ge=0.1,
            le=86_400,
        ),
    ] = 30.0
    drain: Annotated[float, _meta(RUNNING, "How long a stop may wait for messages in hand.", ge=0, le=86_400)] = 30.0
    metrics: Annotated[
        str | None,
        _meta(
            RUNNING,
            "Address to serve Prometheus metrics on: `127.0.0.1:9400`; port 0 takes a free one.",
            default="none",
            pattern=r"^.+:[0-9]{1,5}$",
        ),
    ] = None
    log: Annotated[Literal["text", "json"], _meta(RUNNING, "Form of the log, which goes to standard error.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _meta(RUNNING, "From which level on lines are written.")
    ] = "info"


class Setting(NamedTuple):
    """A line of the table: ``type``, ``default`` and ``help`` for people, ``kind`` and ``meta`` for conversions."""

    name: str
    panel: str
    type: str
    default: str
    help: str
    secret: bool
    positional: bool
    kind: Any
    meta: Meta

    @property
    def option(self) -> str:
        """The option of the commands that use it, or the name of the argument."""
        return self.name.upper() if self.positional else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable: for the service the one that the client reads."""
        return ("QUEUEY_" if self.panel == SERVICE else "QDO_") + self.name.upper()


def table() -> dict[str, Setting]:
    """Returns the table by name."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    lines = {}
    for field in msgspec.structs.fields(Settings):
        meta: Meta = hints[field.name].__metadata__[0]
        extra = meta.extra or {}
        kind = _bare(hints[field.name].__origin__)
        lines[field.name] = Setting(
            name=field.name,
            panel=extra["panel"],
            type=_type_text(kind, meta),
            default=extra["default"] or shown(field.default),
            help=meta.description or "",
            secret=extra["secret"],
            positional=extra["positional"],
            kind=kind,
            meta=meta,
        )
    return lines


def as_markdown() -> str:
    """Returns the table as the documentation shows it."""
    rows = [
        f"| `{line.name}` | {line.type} | {line.default} | {line.help} |".replace("|  |", "| |")
        for line in table().values()
    ]
    return "\n".join(["| name | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def shown(value: object) -> str:
    """Returns a value as one would write it."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bare(hint: Any) -> Any:  # noqa: ANN401 - a type
    """Returns a type without ``None``: no text and no TOML value stands for it."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        (hint,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    return hint


def _type_text(kind: Any, meta: Meta) -> str:  # noqa: ANN401 - a type
    if typing.get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(kind))
    names = {str: "text", Path: "path", bool: "`on` or `off`", int: "whole number", float: "seconds"}
    if kind not in names:
        return "texts"
    limits = f", {shown(meta.ge)} to {shown(meta.le)}" if meta.ge is not None and meta.le is not None else ""
    return names[kind] + limits
