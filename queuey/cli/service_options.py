"""The options that select the service, the same on every command that connects to one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey.model.texts import did_you_mean
from queuey.terminal import output
from queuey.terminal.commands import (
    COMPLETION_TIMEOUT,
    JSON,
    MAX_COMPLETIONS,
    optional,
    safe_completions,
    with_parameters,
)
from queuey.terminal.output import Failed

if TYPE_CHECKING:
    from queuey.client import Client

MAX_COMPARED_NAMES = 1000
"""Max queue names that a misspelled one is compared with."""


def _make_option(kind: Any, about: str, default: str, variable: str | None = None) -> Any:  # noqa: ANN401 - types
    looks: Any = {"show_default": default, "rich_help_panel": "Which service", "show_envvar": False}
    return Annotated[kind | None, typer.Option(help=about, envvar=variable, **looks)]


_OPTIONS = {
    "url": _make_option(str, "Address of the service, or several with commas.", "$QUEUEY_URL or the profile"),
    "app": _make_option(str, "The application.", "$QUEUEY_APP or the profile"),
    "key": _make_option(str, "The API key; other users of this machine may see it here.", "$QUEUEY_KEY or the profile"),
    "token_file": _make_option(Path, "File with a user's token, instead of a key.", "$QUEUEY_TOKEN_FILE"),
    "profile": _make_option(
        Path, "File with address, application and key, as written by queuey serve.", "$QUEUEY_PROFILE or the user's"
    ),
    "ca": _make_option(Path, "Certificates to trust (PEM).", "$QUEUEY_CA or the system's", "QUEUEY_CA"),
}
_RECEIPTS = Annotated[
    Path | None, typer.Option(help="File to append a JSON line to for each stored message, for queuey pipeline audit.")
]
_USER_RIGHTS_HINT = (
    "a user's token gives access to the user's own queues by name, and cannot list queues;"
    " to list, create, change, purge or delete queues, use a key of the application (--key)"
)


def open_client(options: Mapping[str, Any], **others: Any) -> Client:  # noqa: ANN401 - of the client
    from queuey.client import Client

    own: dict[str, Any] = {name: options.get(name) for name in ("url", "key", "token_file", "profile")}
    return Client(application=options.get("app"), verify=options.get("ca") or True, **own, **others)


def connected(command: Callable[..., None], *, receipts: bool = False, existing: bool = False) -> Callable[..., None]:
    """Adds ``--json`` and the options of the service to a command, which receives an open client as first argument.

    Errors about a missing queue, a missing right or a refused key may get a hint.

    Args:
        command: Does the work.
        receipts: Whether the command stores messages, so that ``--receipts`` can record them.
        existing: Whether the queue must exist already, so that the error does not suggest to create it.
    """
    name = next(iter(command.__annotations__))
    # The client's type is only for type checkers, so that --help does not import the client.
    del command.__annotations__[name]
    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    options = {"receipts": _RECEIPTS, **_OPTIONS} if receipts else _OPTIONS

    def run(**values: Any) -> None:  # noqa: ANN401 - the options of any command
        from queuey.client import NotAllowed, NotAuthenticated, QueueNotFound, Timing

        del values[JSON.name]
        where = {option: values.pop(option) for option in _OPTIONS}
        timing = Timing(notice=output.note_pause)
        with open_client(where, receipts=values.pop("receipts", None), timing=timing) as client:
            try:
                command(**{first.name: client}, **values)
            except QueueNotFound as error:
                _explain_missing(client, error, values.values(), existing=existing)
                raise
            except NotAllowed as error:
                if client.scheme not in {"Application", None}:
                    error.add_note(_USER_RIGHTS_HINT)
                raise
            except NotAuthenticated as error:
                if where["key"] is not None and "message_key" in values:
                    error.add_note("--key is the key of the application; for the key of a message use --message-key")
                raise

    added = [optional(option, annotation) for option, annotation in options.items()]
    return with_parameters(run, command, [*own, JSON, *added])


recorded = partial(connected, receipts=True)
on_existing = partial(connected, existing=True)


def _explain_missing(client: Client, error: Exception, values: Iterable[object], *, existing: bool) -> None:
    from queuey.client import ClientError

    missing = next((value for value in values if isinstance(value, str) and repr(value) in str(error)), "")
    names: tuple[str, ...] = ()
    with suppress(ClientError):
        names = client.name_page(limit=MAX_COMPARED_NAMES).names
    hint = did_you_mean([missing], names)
    if existing:
        raise Failed(f"Queue {missing!r} does not exist{hint} List those that do: queuey queue list") from error
    if hint != ".":
        error.add_note(hint.removeprefix("; "))


def complete_queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete(ctx, lambda client: client.name_page(start=incomplete or None, limit=MAX_COMPLETIONS).names)


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:  # noqa: ARG001 - the shell filters
    return _complete(ctx, lambda client: client.groups(ctx.params["queue"]))


def _complete(ctx: typer.Context, read_names: Callable[[Client], Iterable[str]]) -> list[str]:
    from queuey.client import ClientError, RetryPolicy

    with (
        suppress(ClientError),
        open_client(ctx.params, timeout=COMPLETION_TIMEOUT, retry=RetryPolicy(deadline=COMPLETION_TIMEOUT)) as client,
    ):
        return safe_completions(read_names(client))
    return []


Queue = Annotated[
    str, typer.Argument(help="Name of the queue.", show_default=False, autocompletion=complete_queue_names)
]
Group = Annotated[
    str, typer.Argument(help="Name of the consumer group.", show_default=False, autocompletion=group_names)
]
