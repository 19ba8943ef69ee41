"""``queuey serve`` and ``queuey settings``.

Exit codes of ``serve`` beyond 0, 1 and 2: 3 the address cannot be used, 4 the store cannot be used, 5 the store was
written by a newer version, 6 the TLS files cannot be used.
"""

from __future__ import annotations

import itertools
import os
import shlex
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from errno import EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import typer

from queuey.cli.operations.store_options import Config, load, with_settings
from queuey.extras import install_command
from queuey.terminal import output
from queuey.terminal.output import WRONG_USAGE, Failed, Json

if TYPE_CHECKING:
    from queuey.messages import Acknowledgement
    from queuey.settings import Settings
    from queuey.storage import Store
    from queuey.web.gateway.registration import Registration

BAD_ADDRESS, BAD_STORE, NEWER_STORE, BAD_TLS = 3, 4, 5, 6


class Start(NamedTuple):
    """The messages of a start: facts for the one line on standard output, and further notes."""

    facts: str
    notes: tuple[str, ...] = ()
    promise: Acknowledgement | None = None


Facade = Annotated[
    Literal["emodb", "mq", "rqms", "sqs"] | None,
    typer.Option(
        "--facade",
        help="Serve a facade alone, at /, for clients of another system: emodb, mq, rqms or sqs.",
    ),
]
App = Annotated[str | None, typer.Option("--app", help="The application that facades serve.", show_default="queuey")]


@with_settings
def serve(config: Config = None, facade: Facade = None, app: App = None, **options: str | None) -> None:
    """Serve. Needs nothing: the first start makes the store, an application, its key and a profile for the client."""
    chosen = [f"{name}={value}" for name, value in (("only", facade), ("app", app)) if value is not None]
    if chosen:
        options["facades"] = ",".join(filter(None, [options.get("facades"), *chosen]))
    settings = load(options, config).settings
    code = _serve(settings)
    raise typer.Exit(code)


@with_settings
def show_settings(config: Config = None, json: Json = False, **options: str | None) -> None:
    """Show every setting, its value and where the value comes from."""
    from queuey import settings as table
    from queuey.settings import SecretName

    loaded = load(options, config, check=False)
    rows = [(line.name, getattr(loaded.settings, line.attribute), loaded.sources[line.name]) for line in table.table()]
    if json:
        output.emit(
            {
                name: {
                    "value": table.shown(name, value) if isinstance(value, str | Path | SecretName) else value,
                    "source": source,
                }
                for name, value, source in rows
            }
        )
    else:
        output.table(["setting", "value", "source"], _by_group(rows))


def _by_group(rows: Iterable[tuple[str, Any, str]]) -> Iterator[tuple[str, str, str]]:
    from queuey import settings as table

    groups = {line.name: line.group for line in table.table()}
    for group, members in itertools.groupby(rows, lambda row: groups[row[0]]):
        yield group, "", ""
        yield from ((f"  {name}", table.shown(name, value), source) for name, value, source in members)


def _serve(settings: Settings) -> int:
    """Checks everything that can be checked, creates what is missing, and serves. Returns the exit code."""
    from queuey.storage import opening
    from queuey.web.gateway import serve as server
    from queuey.web.http.processes import address_of

    server.check_users(settings)
    try:
        server.check_tls(settings)
    except OSError as error:
        raise Failed(f"the TLS files cannot be used: {_reason(error)}", BAD_TLS) from error
    try:
        listeners = server.listen(settings)
    except OSError as error:
        text = f"cannot listen on {settings.host}:{settings.port}: {_reason(error)}"
        taken = ". Another service may be running: stop it, or choose another port: --port"
        raise Failed(text + (taken if error.errno == EADDRINUSE else ""), BAD_ADDRESS) from error
    address = address_of(listeners[0])
    url = server.url_of(settings, address[1])
    start = _look_at_cassandra(settings) if opening.is_cassandra(settings) else _prepare_sqlite(settings, url)
    start = with_facades(settings, start)
    registration = _registration(settings, address[1])
    try:
        _open_health_port(settings, address)
    except (OSError, OverflowError) as error:
        text = f"cannot listen on {settings.host}:{address[1] + 1}, where clients of EmoDB ask for its health"
        raise Failed(f"{text}: {_reason(error)}", BAD_ADDRESS) from error

    def announce() -> None:
        _announce(url, start)
        if registration is not None:
            registration.start()

    try:
        return server.run(settings, listeners, announce, server.open_service)
    finally:
        if registration is not None:
            registration.close()


def _open_health_port(settings: Settings, address: tuple[str, int]) -> None:
    """Serves health checks on the next port if EmoDB's clients are served."""
    from queuey.web.gateway.health_port import HealthPort

    if "emodb" in settings.facades.prefixes():
        HealthPort(address[0], address[1] + 1, address, tls=settings.tls_cert is not None).start()


def _registration(settings: Settings, port: int) -> Registration | None:
    emodb = settings.facades.emodb
    if emodb.zookeeper is None or "emodb" not in settings.facades.prefixes():
        return None
    host, _, number = (emodb.address or f"{settings.host}:{port}").rpartition(":")
    host = host.strip("[]")
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared
        reason = f"facades.emodb.address is missing: {host} is no address that clients could be told"
        raise Failed(reason, WRONG_USAGE)
    try:
        from queuey.web.gateway.registration import Registration, nodes_of_emodb
    except ImportError as error:
        reason = "facades.emodb.zookeeper needs ZooKeeper's driver, which is not installed. Install it"
        raise Failed(f"{reason}: {install_command('zookeeper')}", WRONG_USAGE) from error
    scheme = "http" if settings.tls_cert is None else "https"
    return Registration(emodb.zookeeper, nodes_of_emodb(emodb.cluster, host, int(number), scheme=scheme))


def _prepare_sqlite(settings: Settings, url: str) -> Start:
    """Creates the store, the application, its key and the profile where they are missing."""
    from queuey.cli.operations import first_start
    from queuey.errors import ApplicationExists, StoreIncompatible, StoreUnavailable
    from queuey.storage import opening

    try:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = opening.open_store(settings, jobs=False)
    except StoreIncompatible as error:
        raise Failed(f"the data directory {settings.data} cannot be used: {error}", NEWER_STORE) from error
    except (StoreUnavailable, OSError) as error:
        raise Failed(f"the data directory {settings.data} cannot be used: {_reason(error)}", BAD_STORE) from error
    try:
        promise = store.acknowledgement()
        if settings.facades.only is not None:
            with suppress(ApplicationExists):
                store.create_application(settings.facades.app)
            return Start(f"data {settings.data}, {_meaning(promise)}", promise=promise)
        made = first_start.prepare(store, settings, url, answers=_answers)
        _require_application(store, settings)
    except StoreUnavailable as error:
        raise Failed(str(error), BAD_STORE) from error
    finally:
        store.close()
    return Start(f"data {settings.data}, profile {made.path}, {_meaning(promise)}", made.notes, promise)


def _look_at_cassandra(settings: Settings) -> Start:
    """Adds the store's promises to the start's messages, or why it cannot be used yet: the service starts anyway."""
    from queuey.cli.operations.store_options import be_quiet
    from queuey.errors import StoreUnavailable
    from queuey.storage import opening

    be_quiet()  # The workers log the same.
    place = f"store {settings.store}"
    store = opening.open_store(settings, jobs=False)
    try:
        applications = store.applications(limit=1)
        promise = store.acknowledgement()
        _require_application(store, settings)
    except StoreUnavailable as error:
        waiting = f"The store cannot be used yet; until it can, requests get 503: {error}"
        return Start(place, (waiting,))
    finally:
        store.close()
    facts = f"{place}, {_meaning(promise)}"
    if applications:
        return Start(facts, promise=promise)
    make = f"queuey app create NAME --store {shlex.quote(settings.store)}"
    return Start(facts, (f"There is no application yet. This makes one and its key: {make}",), promise)


def with_facades(settings: Settings, start: Start) -> Start:
    """Adds the facades to the messages of the start.

    Raises:
        Failed: The store answers before a message is on a disk, and the facade of MQ is to be served.
        SettingsError: The facade of SQS is to be served, and has no secret, or a library is missing.
    """
    from queuey.settings import OPEN
    from queuey.settings.users import is_loopback

    prefixes = settings.facades.prefixes()
    application = settings.facades.app
    notes = [
        f"The facade {name} serves queues of {'each access key' if name == 'sqs' else application} at {at or '/'}."
        for name, at in prefixes.items()
    ]
    if "sqs" in prefixes:
        _check_sqs(settings)
        notes.append(f"Its callers sign with access keys: queuey app key-add {application} --sqs")
    if settings.facades.only == "emodb":
        notes.append(f"Its callers need a key of {application}: queuey app key-add {application}")
    if "mq" in prefixes and (start.promise is None or start.promise.level != "fsync"):
        means = "cannot be reached to say what it promises" if start.promise is None else _meaning(start.promise)
        if not settings.facades.mq.unsynced:
            allow = "Change that, or allow it in the settings file: unsynced = true under [facades.mq]."
            raise Failed(f"MQ answers when a message is on a disk, but this store: {means}. {allow}", BAD_STORE)
        notes.append(f"MQ answers before a message is on a disk. The store: {means}.")
    if not is_loopback(settings.host) and (unasked := [name for name in OPEN if name in prefixes]):
        notes.append(
            f"Everybody who reaches {settings.host} can use the facade {' and '.join(unasked)}: no key is asked for."
        )
    return start._replace(notes=(*start.notes, *notes))


def _check_sqs(settings: Settings) -> None:
    from queuey import facades
    from queuey.facades.sqs.access_keys import deployment_secret

    facades.kind_of("sqs")
    deployment_secret(settings, os.environ)


def _require_application(store: Store, settings: Settings) -> None:
    name = settings.facades.app
    # SQS has queues of whichever application an access key belongs to.
    if settings.facades.prefixes().keys() - {"sqs"} and not store.has_application(name):
        at = f" --store {shlex.quote(settings.store)}" if settings.store != "sqlite" else ""
        make = f"queuey app create {shlex.quote(name)}{at}"
        raise Failed(f"the facades serve the application {name!r}, which does not exist: {make}", WRONG_USAGE)


def _meaning(promise: Acknowledgement) -> str:
    return f"acknowledged means {promise.level}: {promise.text}"


def _announce(url: str, start: Start) -> None:
    output.say(f"Queuey serves at {url}: {start.facts}")
    for text in start.notes:
        output.note(text)


def _reason(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    filename = getattr(error, "filename", None)
    return f"{strerror}{f' ({filename})' if filename else ''}" if strerror else str(error)


def _answers(url: str) -> bool:
    """Returns whether a process accepts connections at a URL."""
    parts = urlsplit(url.partition(",")[0])
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=1).close()
    except OSError:
        return False
    return True
