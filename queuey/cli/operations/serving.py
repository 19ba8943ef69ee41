"""``queuey serve`` and ``queuey settings``.

Further exit codes of ``serve``: 3 if the address cannot be used, 4 if the store cannot be used, 5 if a newer version
has written the store, 6 if the TLS files cannot be used.
"""

from __future__ import annotations

import itertools
import shlex
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from errno import EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
import typer

from queuey.cli.operations.store_options import load, with_settings
from queuey.storage import bridge
from queuey.terminal import output
from queuey.terminal.commands import with_json
from queuey.terminal.output import BAD_ADDRESS, BAD_STORE, BAD_TLS, OTHER_STORE, Failed, os_error_text
from queuey.terminal.signals import end_silently_on_signals

if TYPE_CHECKING:
    from queuey.model.messages import Acknowledgement
    from queuey.settings import Settings


class Start(NamedTuple):
    """What a start prints.

    Attributes:
        facts: The end of the one line on standard output.
        notes: Lines for standard error.
        promise: What an acknowledgement of the store means; None if the store cannot be reached.
        welcome: Further lines for standard output, if that is a terminal.
    """

    facts: str
    notes: tuple[str, ...] = ()
    promise: Acknowledgement | None = None
    welcome: tuple[str, ...] = ()


Facade = Annotated[
    Literal["emodb", "mq", "rqms", "sqs"] | None,
    typer.Option("--facade", help="Serve only a facade, at /, for clients of another system: emodb, mq, rqms or sqs."),
]
App = Annotated[str | None, typer.Option("--app", help="Application that facades serve.", show_default="queuey")]


@with_settings
def serve(config: Path | None = None, facade: Facade = None, app: App = None, **options: str | None) -> None:
    """Start the service. The first start creates the store, an application, its key and a profile for the client."""
    fields = [f"{name}={value}" for name, value in (("only", facade), ("app", app)) if value is not None]
    if fields:
        options["facades"] = ",".join(filter(None, [options.get("facades"), *fields]))
    settings = load(options, config).settings
    code = _serve(settings)
    raise typer.Exit(code)


@with_json
@with_settings
def show_settings(config: Path | None = None, **options: str | None) -> None:
    """Show every setting, its value and where the value comes from."""
    from queuey import settings as table
    from queuey.settings import SecretName

    loaded = load(options, config, check=False)
    rows = [(line.name, table.value_of(loaded.settings, line), loaded.sources[line.name]) for line in table.table()]
    document = {
        name: {
            "value": table.masked_text(name, value) if isinstance(value, str | Path | SecretName) else value,
            "source": source,
        }
        for name, value, source in rows
    }
    output.show(document, [output.Table(["setting", "value", "source"], _rows_with_headings(rows))])


def _rows_with_headings(rows: Iterable[tuple[str, Any, str]]) -> Iterator[tuple[str, str, str]]:
    from queuey import settings as table

    groups = {line.name: line.group for line in table.table()}
    for group, members in itertools.groupby(rows, lambda row: groups[row[0]]):
        yield group, "", ""
        yield from ((f"  {name}", table.masked_text(name, value), source) for name, value, source in members)


def _serve(settings: Settings) -> int:
    from queuey.app import opening
    from queuey.app import serve as server
    from queuey.web.http.processes import address_of

    end_silently_on_signals()  # An interrupt in the middle of a statement would look like a failure of the store.
    server.check_users(settings)
    try:
        server.check_tls(settings)
    except OSError as error:
        raise Failed(f"the TLS files cannot be used: {os_error_text(error)}", BAD_TLS) from error
    try:
        listeners = server.bind(settings)
    except OSError as error:
        text = f"cannot listen on {settings.host}:{settings.port}: {os_error_text(error)}"
        hint = ". Another service may be running: stop it, or choose another port: --port"
        raise Failed(text + (hint if error.errno == EADDRINUSE else ""), BAD_ADDRESS) from error
    address = address_of(listeners[0])
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    extensions = tuple(extension.resolve(settings, address[0], terminal=terminal) for extension in settings.extensions)
    settings = msgspec.structs.replace(settings, extensions=extensions)
    url = server.url_of(settings, address[1])
    if opening.is_cassandra(settings):
        start = _prepare_cassandra(settings)._replace(welcome=_welcome_lines(settings, url, None))
    else:
        start = _prepare_sqlite(settings, url)
    start = add_extension_notes(settings, start)
    with ExitStack() as stack:
        answering = [stack.enter_context(extension.beside(settings, address)) for extension in settings.extensions]

        def announce() -> None:
            _announce(url, start)
            for call in answering:
                call()

        code = server.run(settings, listeners, announce, server.open_service)
    if not opening.is_cassandra(settings):
        from queuey.storage.sqlite.connection import close_file

        close_file(opening.store_path(settings))  # The workers close it at the same time, so perhaps none as the last.
    return code


def _prepare_sqlite(settings: Settings, url: str) -> Start:
    from queuey.access.issued_credentials import Sessions
    from queuey.app import opening
    from queuey.cli.operations import first_start
    from queuey.model.errors import StoreIncompatible, StoreUnavailable

    try:
        opening.store_path(settings).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = opening.open_store(settings, jobs=False)
    except StoreIncompatible as error:
        raise Failed(f"the data directory {settings.data} cannot be used: {error}", OTHER_STORE) from error
    except (StoreUnavailable, OSError) as error:
        raise Failed(f"the data directory {settings.data} cannot be used: {os_error_text(error)}", BAD_STORE) from error
    try:
        promise = bridge.run(store.acknowledgement())
        plan = (
            None
            if settings.sole_api_setting is not None
            else first_start.prepare(store, settings, url, answers=_accepts_connections)
        )
        for extension in settings.extensions:
            extension.prepare(settings, store.applications)
        key = None if plan is None or plan.profile is None else first_start.hash_key(plan.profile.key)
        welcome = _welcome_lines(
            settings, url, None if key is None else lambda: bridge.run(Sessions(store).make_link(key))
        )
    except StoreUnavailable as error:
        raise Failed(str(error), BAD_STORE) from error
    finally:
        store.close()
    if plan is None:
        return Start(f"data {settings.data}, {promise.meaning}", promise=promise)
    return Start(f"data {settings.data}, profile {plan.path}, {promise.meaning}", plan.notes, promise, welcome)


def _welcome_lines(settings: Settings, url: str, link: Callable[[], str] | None) -> tuple[str, ...]:
    return tuple(line for extension in settings.extensions for line in extension.welcome(url, link))


def _prepare_cassandra(settings: Settings) -> Start:
    """Describes the store, or why it cannot be used yet. The service starts in either case.

    Also lets extensions prepare what they need, which may raise Failed.
    """
    from queuey.app import opening
    from queuey.cli.operations.store_options import silence_logs
    from queuey.model.errors import StoreUnavailable

    silence_logs()  # The workers log the same errors.
    place = f"store {settings.store}"
    store = opening.open_store(settings, jobs=False)
    try:
        applications = bridge.run(store.applications.application_names(limit=1))
        promise = bridge.run(store.acknowledgement())
        for extension in settings.extensions:
            extension.prepare(settings, store.applications)
    except StoreUnavailable as error:
        waiting = f"The store cannot be used yet; until then, requests get 503: {error}"
        return Start(place, (waiting,))
    finally:
        store.close()
    facts = f"{place}, {promise.meaning}"
    if applications:
        return Start(facts, promise=promise)
    make = f"queuey app create NAME --store {shlex.quote(settings.store)}"
    return Start(facts, (f"There is no application yet. Create one and its key: {make}",), promise)


def add_extension_notes(settings: Settings, start: Start) -> Start:
    return start._replace(
        notes=(
            *start.notes,
            *(n for extension in settings.extensions for n in extension.notes(settings, start.promise)),
        )
    )


def _announce(url: str, start: Start) -> None:
    output.print_line(f"Queuey serves at {url}: {start.facts}")
    for text in start.welcome if sys.stdout.isatty() else ():
        output.print_line(text)
    for text in start.notes:
        output.print_note(text)


def _accepts_connections(url: str) -> bool:
    parts = urlsplit(url.partition(",")[0])
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=1).close()
    except OSError:
        return False
    return True
