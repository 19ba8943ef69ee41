"""Every setting of ``qdo``: its name, type, help and default, in the order they are shown."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from queuey.terminal.setting_values import bare

SERVICE = ("url", "app", "key", "profile", "ca")
"""The address of the service, and the credentials."""
_SECRET, _POSITIONAL = "key", "handler"
_LINE = re.compile(r"    (?:(\w+)(?: \((.+?)\))?: |    )?(.+)")


class WorkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force, with the help texts of ``--help`` and of the documentation. Durations are seconds.

    Brackets behind a name contain the default in words, where the default value itself does not show it.

    Which service:
        url (the profile's): URL of the service; several are separated by commas.
        app (the profile's): The application.
        key (the profile's): The API key. Other users of this machine can see it on a command line. Not allowed in a
            settings file: use a profile.
        profile (the user's): File with URL, application and key, as written by `queuey serve`.
        ca (the system's): Certificates to trust (PEM).

    Which messages:
        queue: A queue; several may be given.
        claim: Claim messages, so that each goes to one worker, in no order: no group and no coordination. There may be
            10 of `queue`, in order of preference. The queue's `backoff` and `max_deliveries` say when a failed message
            comes again, and when it becomes a dead letter.
        claim_ttl: With `claim`: time after which the messages of a worker that has died go to another.
        pattern: All queues whose names match, also future ones: `crash-*`, `job-?`; several may be given.
        wait_for_queue: How long the worker waits for one of its queues to exist, if no `pattern` is given. Then it ends
            with code 1; 0: it waits for ever.
        start: Where a group without an offset begins: with the oldest message, or with new messages only.

    Group:
        group: Name of the group; its members divide the partitions among themselves.
        coordination: The coordination service: `local:` (processes of this machine and user),
            `local:///path/to/file`, or `zookeeper://host1,host2:2181/chroot`.
        session_timeout (depends on the coordination): Time without a sign of life after which a member's partitions go
            to others.
        name (a new one at each start): Name of this member, unique in the group and the same after a restart; see
            `grace`.
        grace: How long members with a `name` keep their partitions while they are away; the same for all members.

    Handling:
        handler: The function that handles a message: `module:function`; modules of the working directory are found.
        context: Makes the handler's second argument: `module:factory`, called once; see docs/qdo.md.
        threads (8): Partitions that a plain function handles at the same time.
        tasks (100): Partitions that an async function handles at the same time.
        processes (none): Run the handler in this many processes: for handlers that compute or need a time limit.
        by (one after another): Handle several messages of a partition at the same time, but those with the same key in
            order. The key is `header:NAME` or `body:FIELD`.
        parallel: With `by`: messages of one partition that are handled at the same time.
        time_limit (none): Longest time of one attempt. Needs an async function or `processes`, because a thread cannot
            be stopped.
        stalled_after: Time after which an attempt that has not ended counts as failed. A thread cannot be stopped, so
            its worker releases its partitions and joins the group again. A worker that hangs as a whole for this
            time ends.

    When a handler fails:
        attempts: Attempts before a message counts as failed; 0: no limit. With `claim` the queue's `max_deliveries`
            decides.
        retry_base: Longest pause after the first attempt; doubles with each attempt. The pause is random, from 0 to
            this.
        retry_cap: Longest pause after any attempt.
        never_retry: Class of an error that is not retried: `ValueError`; several may be given.
        on_failure: What happens to a failed message: `dead-letter` puts it into `<queue>.dead`, `skip` only logs it,
            `stop` ends the worker and leaves it unhandled, `retry` tries it again.
        dead_queue (the message's queue with `.dead` behind): Queue for dead letters.
        dead_ttl (30d): How long dead letters are kept.

    Running:
        commit_messages: Number of handled messages after which offsets are committed.
        commit_seconds: Time after which they are committed if fewer messages were handled.
        mirror: Record the offsets in the service too, so that `queuey offsets show` shows them.
        prefetch_messages: Messages that a worker fetches in advance, over all partitions.
        prefetch_bytes: Bytes of their bodies.
        discover: Time between two searches for new queues and partitions.
        revoke_timeout: How long a rebalance waits for a partition that moves: four fifths for its current message, the
            rest to commit. After that the next owner handles the message again.
        drain: How long a stop waits for messages that are being handled.
        metrics (none): Address to serve Prometheus metrics on: `127.0.0.1:9400`; port 0 takes a free one.
        trace: Report spans to OpenTelemetry; see docs/tasks.md.
        log: Format of the log, which goes to standard error.
        log_level: The least severe log records to write.
    """

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
    start: Literal["earliest", "latest"] = "earliest"
    group: Annotated[str | None, Meta(min_length=1)] = None
    coordination: Annotated[str, Meta(min_length=1)] = "local:"
    session_timeout: Annotated[float | None, Meta(ge=0.1, le=300)] = None
    name: Annotated[str | None, Meta(min_length=1)] = None
    grace: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    context: str | None = None
    threads: Annotated[int | None, Meta(ge=1, le=1024)] = None
    tasks: Annotated[int | None, Meta(ge=1, le=100_000)] = None
    processes: Annotated[int | None, Meta(ge=1, le=256)] = None
    by: Annotated[str | None, Meta(pattern=r"^(header|body):.+$")] = None
    parallel: Annotated[int, Meta(ge=1, le=10_000)] = 8
    time_limit: Annotated[float | None, Meta(gt=0)] = None
    stalled_after: Annotated[float, Meta(ge=0.1, le=86_400)] = 300.0
    attempts: Annotated[int, Meta(ge=0, le=1_000_000)] = 5
    retry_base: Annotated[float, Meta(ge=0)] = 0.5
    retry_cap: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    never_retry: tuple[str, ...] = ()
    on_failure: Literal["dead-letter", "skip", "stop", "retry"] = "dead-letter"
    dead_queue: Annotated[str | None, Meta(min_length=1)] = None
    dead_ttl: Annotated[float, Meta(ge=1, le=33_554_432)] = 2_592_000.0
    commit_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    commit_seconds: Annotated[float, Meta(ge=0.001, le=3600)] = 1.0
    mirror: bool = False
    prefetch_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    prefetch_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = 16 << 20
    discover: Annotated[float, Meta(ge=0.01, le=3600)] = 30.0
    revoke_timeout: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    drain: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    metrics: Annotated[str | None, Meta(pattern=r"^.+:[0-9]{1,5}$")] = None
    trace: bool = False
    log: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class WorkSetting(NamedTuple):
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

    def shown(self, _: str, value: object) -> str:
        """Returns a value as it may be printed."""
        return "***" if self.secret else str(value)

    @property
    def variable(self) -> str:
        """The environment variable: for the service the one that the client reads."""
        return ("QUEUEY_" if self.name in SERVICE else "QDO_") + self.name.upper()


def table() -> dict[str, WorkSetting]:
    """Returns the table by name."""
    hints = typing.get_type_hints(WorkSettings, include_extras=True)
    described = _described()
    lines = {}
    for field in msgspec.structs.fields(WorkSettings):
        hint = hints[field.name]
        annotated = typing.get_origin(hint) is Annotated
        meta = hint.__metadata__[0] if annotated else Meta()
        kind = bare(hint.__origin__ if annotated else hint)
        panel, default, text = described.get(field.name, ("", "", ""))
        lines[field.name] = WorkSetting(
            name=field.name,
            panel=panel,
            type=_type_text(kind, meta),
            default=default or shown(field.default),
            help=text,
            secret=field.name == _SECRET,
            positional=field.name == _POSITIONAL,
            kind=kind,
            meta=meta,
        )
    return lines


def _described() -> dict[str, tuple[str, str, str]]:
    """Reads the docstring of the settings; returns for each its panel, its default in words, and its help."""
    found: dict[str, tuple[str, str, str]] = {}
    panel = name = ""
    for line in inspect.cleandoc(WorkSettings.__doc__ or "").splitlines():
        if match := _LINE.fullmatch(line):
            if match[1]:
                name = match[1]
                found[name] = panel, match[2] or "", match[3]
            else:
                found[name] = *found[name][:2], f"{found[name][2]} {match[3]}"
        else:
            panel = line.removesuffix(":")
    return found


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


def _type_text(kind: Any, meta: Meta) -> str:  # noqa: ANN401 - a type
    if typing.get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(kind))
    names = {str: "text", Path: "path", bool: "`on` or `off`", int: "whole number", float: "seconds"}
    if kind not in names:
        return "texts"
    limits = f", {shown(meta.ge)} to {shown(meta.le)}" if meta.ge is not None and meta.le is not None else ""
    return names[kind] + limits
