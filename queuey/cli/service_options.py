"""Which service a command speaks to: the same options on every command that needs one."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from queuey.terminal import fail
from queuey.terminal.commands import optional, with_parameters


def _option(kind: Any, about: str, default: str) -> Any:  # noqa: ANN401 - types
    return Annotated[kind | None, typer.Option(help=about, show_default=default, rich_help_panel="Which service")]


_OPTIONS = {
    "url": _option(str, "Its address; several with commas.", "$QUEUEY_URL or the profile"),
    "app": _option(str, "The application.", "$QUEUEY_APP or the profile"),
    "key": _option(str, "The API key; other users of this machine may see it here.", "$QUEUEY_KEY or the profile"),
    "token_file": _option(Path, "File with a user's token, in place of a key.", "$QUEUEY_TOKEN_FILE"),
    "profile": _option(
        Path, "File with address, application and key, as written by queuey serve.", "$QUEUEY_PROFILE or the user's"
    ),
    "ca": _option(Path, "Certificates to trust (PEM).", "$QUEUEY_CA or the system's"),
}


_USERS = (
    "a user's token opens the queues that the application gave to this user, by their names, and lists none;"
    " to list, create, change, purge or delete queues use a key of the application (--key)"
)

_RECEIPTS = Annotated[
    Path | None,
    typer.Option(help="File to append a line of JSON to for every message that was stored, for queuey pipeline audit."),
]


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command, whose first parameter is an open client, the options that say where that connects to."""
    return _connected(command, _OPTIONS)


def recorded(command: Callable[..., None]) -> Callable[..., None]:
    """Does what :func:`connected` does for a command that stores messages, of which receipts can be kept."""
    return _connected(command, {"receipts": _RECEIPTS, **_OPTIONS})


@contextmanager
def existing(queue: str) -> Iterator[None]:
    """For commands on a queue that has to be there already: creating it is no next step.

    Raises:
        typer.Exit: It does not exist, which was said.
    """
    from queuey.client import QueueNotFound

    try:
        yield
    except QueueNotFound as error:
        fail(f"Queue {queue!r} does not exist. List those that do: queuey queue list")
        raise typer.Exit(1) from error


def _connected(command: Callable[..., None], options: Mapping[str, Any]) -> Callable[..., None]:
    name = next(iter(command.__annotations__))
    # The client's type is only there for type checkers, so that --help does not import the client.
    del command.__annotations__[name]
    first, *own = inspect.signature(command, eval_str=True).parameters.values()

    def run(**values: Any) -> None:  # noqa: ANN401 - the options of any command
        from queuey.client import Client, NotAllowed, NotAuthenticated

        url, app, key, token_file, profile, ca = (values.pop(option) for option in _OPTIONS)
        if profile is not None:
            # The client reads the profile from the file that this variable names.
            os.environ["QUEUEY_PROFILE"] = str(profile)
        receipts = values.pop("receipts", None)
        ca = ca or os.environ.get("QUEUEY_CA") or None
        verify = True if ca is None else str(ca)
        with Client(url, key=key, token_file=token_file, application=app, verify=verify, receipts=receipts) as client:
            try:
                command(**{first.name: client}, **values)
            except NotAllowed as error:
                if client.scheme not in {"Application", None}:
                    error.add_note(_USERS)
                raise
            except NotAuthenticated as error:
                if key is not None and "message_key" in values:
                    error.add_note("--key is the key of the application; that of a message is --message-key")
                raise

    added = [optional(option, annotation) for option, annotation in options.items()]
    return with_parameters(run, command, [*own, *added])
