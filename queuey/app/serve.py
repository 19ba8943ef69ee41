"""Serving: what a worker of a service does from start to end. :mod:`queuey.web.http.processes` has the parent.

The parent opens no store. Each worker is a fresh process (spawned, not forked) that opens its own store, serves, and
stops in this order:

1. SIGTERM arrives (from the parent, or because the parent is gone); long polls are answered;
2. no connection is accepted any more, requests under way are finished, idle connections are closed;
3. requests of other workers are answered;
4. the store is closed, which finishes the writes it has accepted;
5. the process ends. If 2 and 3 are not done in time, 4 and 5 happen all the same.

On the first SIGTERM or SIGINT the parent stops the workers, waits, and exits with 0; on a second one it kills them.
SIGHUP reloads the certificate and stops nothing, as when a terminal is closed. A worker that dies is replaced. If no
worker can start, the service ends with exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import gc
import logging
import logging.config
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from queuey.access.credentials.users import make_readers
from queuey.app.opening import open_store, refuse_password
from queuey.model.errors import QueueyError
from queuey.runtime.limits import Limits
from queuey.runtime.logs import LineFormatter
from queuey.runtime.workers import WorkerIdentity
from queuey.settings import Include, Settings, is_loopback, select_settings
from queuey.settings.definitions import patterns_of
from queuey.terminal.signals import stop_with_parent
from queuey.web.http import processes

if TYPE_CHECKING:
    from queuey.app.service import App

logger = logging.getLogger(__name__)

OTHER_FILES = 1024
"""Max open files besides connections: the store's files and its connections to Cassandra."""
CLOSE_SHARE = 0.25
"""Share of the shutdown timeout that is reserved for closing the store."""
LEAVE_TIMEOUT = 1.0
"""Timeout for background work, and for answers to other workers, in seconds."""
HEARTBEAT_INTERVAL = 1.0
_KEPT_VARIABLES = frozenset(
    {"HOME", "LANG", "LC_ALL", "PATH", "SQLITE_TMPDIR", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "TZ", "USER"}
)


Opener = Callable[[Settings], "App"]


def open_service(settings: Settings, includes: Iterable[Include] = (), *, listens: bool = True) -> App:
    """Opens the store and builds the application, in the process that serves it.

    A Cassandra store need not be reachable: requests get 503 until it is.

    Args:
        listens: The service listens at the host of the settings. False if another server serves the application, at any
            host.

    Raises:
        StoreUnavailable, StoreIncompatible, SettingsError: The store cannot be used.
    """
    from queuey.app.application import make_app  # noqa: PLC0415 - not in the parent process

    readers = make_readers(settings.users) if settings.users else []
    longest = settings.longest_body(settings.max_body)
    limits = Limits(**select_settings(settings, Limits.__struct_fields__), longest_body=longest)
    own_includes = [
        include for extension in settings.extensions if (include := extension.include(settings, readers)) is not None
    ]
    return make_app(
        open_store(settings),
        limits=limits,
        publish_metrics=settings.metrics.publish,
        shown_backlogs=patterns_of(settings.metrics.backlog),
        shown_lags=patterns_of(settings.metrics.lag),
        readers=readers,
        private=frozenset(settings.users),
        own_api=settings.sole_api_setting is None,
        on_loopback=listens and is_loopback(settings.host),
        includes=[*own_includes, *includes],
    )


def url_of(settings: Settings, port: int) -> str:
    """Returns the URL at which this machine reaches the service; a host that means all addresses becomes loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_tls(settings: Settings) -> None:
    """Loads the certificate and its key, as the workers will; does nothing unless both are set.

    Raises:
        OSError: A file is missing, unreadable or not PEM, or the two do not belong together (``ssl.SSLError``).
    """
    if settings.tls_cert is not None and settings.tls_key is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=refuse_password)


def check_users(settings: Settings) -> None:
    """Makes the readers of users' credentials as the workers will, and has extensions check theirs; asks no issuer.

    Raises:
        SettingsError: A library is not installed, or a key file or a secret cannot be used.
    """
    readers = make_readers(settings.users, prefetch=False) if settings.users else []
    for extension in settings.extensions:
        extension.check(settings, readers)


def bind(settings: Settings) -> list[socket.socket]:
    """Returns the sockets of the workers, at which :func:`run` will listen.

    Raises:
        OSError: The host is unknown or not of this machine, or the port is in use or not allowed.
    """
    return processes.bind(settings.host, settings.port, settings.workers)


def run(settings: Settings, listeners: list[socket.socket], announce: Callable[[], None], opener: Opener) -> int:
    """Configures logging, and serves until a signal ends it, or until no worker can start.

    Args:
        announce: Called once, when requests are answered.

    Returns:
        The exit code: 0 after a signal, 1 if no worker can start.
    """
    configure_logging(settings.log_level, settings.log_format)
    processes.listen(listeners, max(1024, settings.connections))
    identity = WorkerIdentity.of_service(settings.workers)
    work = functools.partial(run_worker, settings, opener, identity)
    return processes.Parent(listeners, work, settings.shutdown_timeout).run(announce)


def run_worker(
    settings: Settings,
    opener: Opener,
    identity: WorkerIdentity,
    number: int,
    listener: socket.socket,
    beats: multiprocessing.connection.Connection,
) -> None:
    """Runs one worker process from start to end. Exits with code 1 if the service cannot be opened.

    Args:
        identity: What all workers of this service have in common.
        beats: The pipe for heartbeats: a byte each second, for the parent.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable()  # The parent ends a stalled worker with SIGABRT.
    _allow_open_files(settings.connections)
    # Blocked in all threads, so that one thread receives them in order: see _stop_on_signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    configure_logging(settings.log_level, settings.log_format)
    try:
        app = opener(settings)
    except QueueyError as error:
        logger.error("The worker cannot start: %s", error)  # noqa: TRY400 - the reason is in the message
        raise SystemExit(1) from error
    # Not earlier: the store's password may have been in a variable.
    _clear_environment()
    loop, stop, done = new_loop(), asyncio.Event(), threading.Event()
    stop_soon = functools.partial(loop.call_soon_threadsafe, stop.set)
    threading.Thread(target=_stop_on_signal, args=(app, settings, stop_soon, done), daemon=True).start()
    if (parent := multiprocessing.parent_process()) is not None:
        stop_with_parent(parent.sentinel)
    try:
        loop.run_until_complete(_serve(app, settings, listener, beats, identity._replace(number=number), stop))
    finally:
        app.service.leave(LEAVE_TIMEOUT)
        done.set()
        app.service.store.close(settings.shutdown_timeout * CLOSE_SHARE)


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(
    app: App,
    settings: Settings,
    listener: socket.socket,
    beats: multiprocessing.connection.Connection,
    identity: WorkerIdentity,
    stop: asyncio.Event,
) -> None:
    """Serves the listener until ``stop`` is set, then ends connections, service and gateway in this order.

    SIGHUP loads the TLS certificate again.
    """
    from queuey.web.errors import refusal_response  # noqa: PLC0415 - not in the parent process
    from queuey.web.gateway import make_gateway  # noqa: PLC0415
    from queuey.web.http.listening import Certificate, ProcessConnections  # noqa: PLC0415 - as above

    loop = asyncio.get_running_loop()
    gateway = make_gateway(app, settings)
    certificate = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        certificate = Certificate(settings.tls_cert, settings.tls_key)
    # Requests create and drop many objects; those that exist by now live as long as the process.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gateway.start(loop)
    # Use cases run in this loop from here on, so none may begin earlier.
    service = app.service
    service.join(identity)
    service.start_background_work()
    connections = ProcessConnections(
        loop, listener, settings.connections, gateway.answer, refusal_response, certificate
    )
    loop.add_signal_handler(signal.SIGHUP, connections.reload)
    gateway.timer.call_every(1.0, connections.sweep)
    connections.start()
    os.set_blocking(beats.fileno(), False)
    gateway.timer.call_every(HEARTBEAT_INTERVAL, functools.partial(_send_heartbeat, beats))
    await stop.wait()
    await connections.stop()
    await service.end(LEAVE_TIMEOUT)
    gateway.stop()


def _send_heartbeat(beats: multiprocessing.connection.Connection) -> None:
    with contextlib.suppress(OSError):
        beats.send_bytes(b".")


def _allow_open_files(connections: int) -> None:
    """Raises the process's limit of open files for this many connections, as far as the system allows.

    Never lowers it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < required:
        allowed = required if hard == resource.RLIM_INFINITY else min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _stop_on_signal(app: App, settings: Settings, stop: Callable[[], object], done: threading.Event) -> None:
    """Waits for SIGTERM and stops the loop; exits with 0 within the shutdown timeout, whether requests finish or not.

    If requests take too long, it closes the store itself.
    """
    signal.sigwait({signal.SIGTERM})
    deadline = time.monotonic() + settings.shutdown_timeout
    app.service.stopping.set()
    stop()
    if done.wait(settings.shutdown_timeout * (1 - CLOSE_SHARE)):
        # The main thread closes the store. Usually the process, and this thread with it, ends long before.
        time.sleep(max(0.0, deadline - time.monotonic()))
    else:
        logger.warning("Some requests did not finish within the shutdown timeout; their connections are closed.")
        app.service.store.close(settings.shutdown_timeout * CLOSE_SHARE)
    logging.shutdown()
    os._exit(0)


def _clear_environment() -> None:
    """Removes variables that may hold secrets, so that child processes and dumps do not get them."""
    for name in list(os.environ):
        if name not in _KEPT_VARIABLES and not name.startswith("PYTHON"):
            del os.environ[name]


class QuietDriver(logging.Filter):
    """Drops the records that cassandra-driver logs at every attempt to connect; the store logs the reason once.

    Args:
        level: Least severe level to write; ``debug`` keeps all records.
    """

    def __init__(self, level: str) -> None:
        super().__init__()
        self._everything = level == "debug"

    def filter(self, record: logging.LogRecord) -> bool:
        return self._everything or not record.name.startswith("cassandra.")


def logging_configuration(level: str, form: str) -> dict[str, Any]:
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": LineFormatter, "form": form}},
        "filters": {"driver": {"()": QuietDriver, "level": level}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "line",
                "filters": ["driver"],
            }
        },
        "root": {"level": level.upper(), "handlers": ["stderr"]},
    }


def configure_logging(level: str, form: str) -> None:
    logging.config.dictConfig(logging_configuration(level, form))
