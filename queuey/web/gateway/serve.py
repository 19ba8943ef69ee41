"""Serving: a parent process that starts granian's workers, and what each worker does from start to end.

The parent holds no store. Each worker is a fresh process (spawned, not forked) that opens its own store, serves, and
stops in this order:

1. SIGTERM arrives (from the parent, or because the parent is gone); long polls are answered;
2. no connection is accepted any more, requests under way are finished, idle connections are closed;
3. what other workers have asked is answered;
4. the store is closed, which finishes the writes it has accepted;
5. the process ends. If 2 and 3 are not done in time, 4 and 5 happen all the same.

The parent passes SIGTERM and SIGINT on once, waits, and exits with 0; on a second one it kills the workers. SIGHUP is
ignored, so that closing the terminal stops nothing. A worker that dies is replaced; one that dies again at once ends
the service with exit code 1, which its supervisor sees.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import ipaddress
import logging
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
from types import FrameType
from typing import Any, NamedTuple

import granian._signals
from granian._granian import WorkerSignal
from granian.constants import HTTPModes, Interfaces, RuntimeModes, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server import MPServer

from queuey.errors import QueueyError
from queuey.service import Limits, Service
from queuey.service.workers import WorkerIdentity
from queuey.settings import Settings, part
from queuey.storage import Store
from queuey.storage.opening import no_password, open_store
from queuey.web.credentials.users import readers_of
from queuey.web.gateway import logs

logger = logging.getLogger(__name__)

HEAD_SECONDS = 10
"""Seconds within which a connection has to send the head of a request, its first one or the next."""
HEAD_BYTES = 128 * 1024
"""Bytes that the head of a request may have, and that the server gathers before it writes."""
UNREAD_SECONDS = 30
"""Seconds after which a connection is closed whose other end does not take what was sent."""
TCP_NOTSENT_LOWAT = 25
"""Linux's number of the option; Python knows it from 3.12 on."""
UNSENT_BYTES = 128 * 1024
"""Bytes that the system buffers for a connection beyond those that the other end can take."""
OTHER_FILES = 1024
"""Files that a worker may have open beside its connections: those of the store, and connections to Cassandra."""
CLOSE_SHARE = 0.25
"""Part of the shutdown timeout that is kept back for closing the store."""
LEAVE_SECONDS = 1.0
"""Seconds for answering what the other workers have asked. They count for the time of requests under way."""
HARD_STOP_AFTER = 5.0
"""Seconds beyond the shutdown timeout after which the parent ends whatever is left."""
REBIND_FOR = 2.0
"""Seconds to wait for the port: the workers of a service that was just killed notice it a moment later."""
_KEPT_VARIABLES = frozenset(
    {"HOME", "LANG", "LC_ALL", "PATH", "SQLITE_TMPDIR", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "TZ", "USER"}
)


class Opened(NamedTuple):
    """What a worker serves: the application, its store, and how to answer all waiting requests."""

    app: Any
    store: Store
    wake: Callable[[], None]


Opener = Callable[[Settings], Opened]


Include = Callable[[Any], None]
"""Adds to a configuration of Pyramid's."""


def open_service(settings: Settings, includes: Iterable[Include] = ()) -> Opened:
    """Opens the store and builds the application, in the process that serves it.

    A Cassandra store need not be reachable: requests get 503 until it is.

    Raises:
        StoreUnavailable, StoreIncompatible, SettingsError: The store cannot be used.
    """
    from queuey.web import make_app  # noqa: PLC0415 - not in the parent process

    readers = readers_of(settings.users) if settings.users else []
    longest = settings.facades.longest_body(settings.max_body)
    limits = Limits(**part(settings, Limits.__struct_fields__), longest_body=longest)
    store = open_store(settings)
    stopping = threading.Event()
    app = make_app(
        store,
        limits=limits,
        stopping=stopping,
        publish_metrics=settings.metrics,
        readers=readers,
        private=frozenset(settings.users),
        served=settings.facades,
        includes=includes,
    )
    return Opened(app, store, stopping.set)


def url_of(settings: Settings, port: int) -> str:
    """Returns the URL under which programs on this machine reach the service."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_tls(settings: Settings) -> None:
    """Loads the certificate and its key, as the workers will.

    Raises:
        OSError: A file is missing, unreadable, no PEM, or the two do not belong together (``ssl.SSLError``).
    """
    if settings.tls_cert is not None and settings.tls_key is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=no_password)


def check_users(settings: Settings) -> None:
    """Makes the readers of users' credentials as the workers will, but asks no issuer.

    Raises:
        SettingsError: A library is not installed, or a file of keys cannot be used.
    """
    if settings.users:
        readers_of(settings.users, ask=False)


def find_address(settings: Settings) -> tuple[str, int]:
    """Finds the IP address and port to listen on, and checks that no other process listens there.

    granian's sockets share a port with others of this user (SO_REUSEPORT), so two services would silently share its
    connections; this bind does not.

    Raises:
        OSError: The host is unknown or not of this machine, or the port is taken or not allowed.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    give_up = time.monotonic() + REBIND_FOR
    while True:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > give_up:
                    raise
            else:
                host, port = probe.getsockname()[:2]
                return str(ipaddress.ip_address(host)), int(port)
        time.sleep(0.1)


def run(settings: Settings, address: tuple[str, int], announce: Callable[[], None], opener: Opener) -> int:
    """Serves until a signal or a crash loop ends it.

    Args:
        settings: The settings in force.
        address: IP address and port, from :func:`find_address`.
        announce: Called once, when connections are accepted.
        opener: Opens the store and builds the application in each worker; importable by name.

    Returns:
        The exit code: 0 after a signal, 1 when workers keep dying.
    """
    logs.configure(settings.log_level, settings.log_format)
    multiprocessing.set_start_method("spawn", force=True)
    server = _server(settings, address)
    server.on_startup(functools.partial(_take_signals, server, settings.shutdown_timeout))
    threading.Thread(target=_announce_when_up, args=(address, announce), daemon=True).start()
    try:
        server.serve(
            spawn_target=functools.partial(run_worker, WorkerIdentity.of_service(settings.workers)),
            target_loader=functools.partial(opener, settings),  # type: ignore[arg-type] # run_worker calls it
            wrap_loader=False,
        )
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def run_worker(
    identity: WorkerIdentity,
    number: int,
    name: str | None,
    loader: functools.partial[Opened],
    *rest: Any,  # noqa: ANN401
) -> None:
    """Is one worker process from start to end; granian starts it with these arguments.

    Args:
        identity: What all workers of this service have in common.
        number: Of the worker, from 1.
        name: granian's process name.
        loader: The opener with the settings.
        rest: What granian hands to its own worker function.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _allow_open_files(loader.args[0].connections)
    # Blocked in all threads, so that one thread can take them one by one: see _stop_on_signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    settings: Settings = loader.args[0]
    logs.configure(settings.log_level, settings.log_format)
    try:
        opened = loader()
    except QueueyError as error:
        logger.error("The worker cannot start: %s", error)  # noqa: TRY400 - the reason is in the message
        raise SystemExit(1) from error
    # Only now: the store's password may have been in a variable.
    _clear_environment()
    done = threading.Event()
    stop = WorkerSignal()
    # The thread below takes the signals; granian's loop only needs something to listen to.
    granian._signals.set_loop_signals = lambda _loop: stop  # noqa: SLF001 - it offers no other way
    stopper = threading.Thread(target=_stop_on_signal, args=(opened, settings, stop, done), daemon=True)
    stopper.start()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    service: Service = opened.app.registry.service
    from queuey.web.gateway.asgi import make_gateway  # noqa: PLC0415 - not in the parent process

    gateway = make_gateway(opened.app, settings)
    # Each request makes and drops many objects; those that exist by now live as long as the process.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)

    def load() -> Callable[..., Any]:
        gateway.start(asyncio.get_event_loop())  # the one that granian has made for this thread
        # From here on use cases run in this loop, so nothing may begin any before.
        service.workers.join(identity._replace(number=number))
        service.moves.watch()
        return gateway.__call__

    try:
        MPServer._spawn_asgi_worker(number, name, load, _listen(rest[0], settings), *rest[1:])  # noqa: SLF001 - its public
        # counterpart, a custom spawn target, still has to call it
        gateway.stop()
    finally:
        service.workers.leave(LEAVE_SECONDS)
        done.set()
        opened.store.close(settings.shutdown_timeout * CLOSE_SHARE)


def _allow_open_files(connections: int) -> None:
    """Raises this process's own limit, as far as the system lets it: a connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _listen(sockets: Any, settings: Settings) -> Any:  # noqa: ANN401 - granian's, compiled
    """Takes the identity of granian's listening socket, which offers no options. Connections inherit those of this one.

    Args:
        sockets: As granian hands them to a worker: what to make a socket of, and one that is made already.
        settings: The settings in force.
    """
    (spec, _), shared = sockets
    tenant = spec.build()
    listener = socket.socket(fileno=os.dup(tenant.get_fd()))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)
    listener.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listener.listen(_backlog(settings))
    listener.close()
    return (spec, tenant), shared


def _backlog(settings: Settings) -> int:
    return max(1024, settings.connections)


def _stop_on_signal(opened: Opened, settings: Settings, stop: WorkerSignal, done: threading.Event) -> None:
    """Waits for SIGTERM, then makes sure that this process ends in time."""
    signal.sigwait({signal.SIGTERM})
    until = time.monotonic() + settings.shutdown_timeout
    opened.wake()
    stop.set()
    if done.wait(settings.shutdown_timeout * (1 - CLOSE_SHARE)):
        # The main thread closes the store. Usually the process, and this thread with it, ends long before.
        time.sleep(max(0.0, until - time.monotonic()))
    else:
        logger.warning("Some requests did not finish within the shutdown timeout; their connections are closed.")
        opened.store.close(settings.shutdown_timeout * CLOSE_SHARE)
    logging.shutdown()
    os._exit(0)


def _stop_with_parent() -> None:
    """Stops this worker when its parent is gone, so that it does not go on serving unsupervised."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _clear_environment() -> None:
    """Removes variables: what a worker starts, or shows of its environment, has no secrets."""
    for name in list(os.environ):
        if name not in _KEPT_VARIABLES and not name.startswith("PYTHON"):
            del os.environ[name]


def _server(settings: Settings, address: tuple[str, int]) -> MPServer:
    # Without granian's own time limit for a stop: _take_signals has one, and granian believes of a worker that ended,
    # and that another thread has reaped, that it refused to stop.
    levels = {"debug": LogLevels.debug, "error": LogLevels.error}
    return MPServer(
        target="queuey.web.gateway.serve",
        address=address[0],
        port=address[1],
        interface=Interfaces.ASGINL,
        # One thread beside the loop's takes all connections in. granian's other mode moves tasks between threads, for
        # 5 µs of CPU a request more.
        runtime_mode=RuntimeModes.st,
        workers=settings.workers,
        backpressure=settings.connections,
        backlog=_backlog(settings),
        http1_settings=HTTP1Settings(header_read_timeout=HEAD_SECONDS * 1000, max_buffer_size=HEAD_BYTES),
        http=HTTPModes.http1,
        websockets=False,
        log_level=levels.get(settings.log_level, LogLevels.warning),
        log_dictconfig=logs.configuration(settings.log_level, settings.log_format),
        ssl_cert=settings.tls_cert,
        ssl_key=settings.tls_key,
        ssl_protocol_min=SSLProtocols.tls12,
        respawn_failed_workers=True,
    )


def _take_signals(server: MPServer, timeout: float) -> None:
    """Replaces granian's signal handlers in the parent: the first signal stops, the second kills."""
    stopping = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            logger.warning("Second signal: stopping at once.")
            _kill(server, 128 + number)
        stopping.set()
        logger.info("Stopping; a second signal stops at once.")
        timer = threading.Timer(timeout + HARD_STOP_AFTER, _kill, (server, 1))
        timer.daemon = True
        timer.start()
        server.signal_handler_interrupt()  # type: ignore[no-untyped-call]

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _kill(server: MPServer, code: int) -> None:
    for worker in list(server.wrks):
        worker.kill()  # type: ignore[no-untyped-call]
    logging.shutdown()
    os._exit(code)


def _announce_when_up(address: tuple[str, int], announce: Callable[[], None]) -> None:
    """Calls ``announce`` as soon as a worker accepts connections."""
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            announce()
            return
