"""A service inside a program: the store, the gateway, and an event loop in its own thread.

The service ends when it is closed, or when the process ends. It shuts down in the order of
:mod:`queuey.app.serve`: it answers long polls, finishes running requests, then closes the store. A forked child
cannot use the service, because its threads run in the parent only, and SQLite connections must not be shared. The child
cannot open the same file either, see ``_inherited_files``.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import stat
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from queuey.access.credentials.readers import Identity
from queuey.app.application import make_app
from queuey.app.opening import check_store_settings, is_cassandra, open_store, store_path
from queuey.app.serve import LEAVE_TIMEOUT, new_loop
from queuey.client.calls.call import HttpAnswer, read_error
from queuey.client.errors import ApiError, InvalidArgument
from queuey.client.forks import register_forkable
from queuey.embedded.exchange import InProcessExchange, Part
from queuey.model.errors import ApplicationExists, QueueyError, SettingsError, StoreUnavailable
from queuey.model.rights import owner_name
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.settings import Settings, load, select_settings
from queuey.storage import Store, bridge
from queuey.storage.deadlines import LoopCalls
from queuey.web.errors import error_response_without_request
from queuey.web.gateway import make_gateway
from queuey.web.http.heads import RequestHead

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 10.0
"""Timeout for running requests, and for the store to finish accepted writes, in seconds each."""
_FILE_HANDLES_DIRECTORY = Path("/proc/self/fd")
_inherited_services: list[EmbeddedService] = []
"""Services of a parent process. They are kept, because dropping them would close connections to the parent's store."""
_open_files: list[Path] = []
"""Store files of the services in this process. A file is added before it is opened."""
_inherited_files: set[Path] = set()
"""Files that a parent process had open when it forked. A child's SQLite would take the parent's locks for its own."""


class InProcessCaller:
    """Authenticates requests from this process: the credential names the application whose owner is the caller."""

    scheme = "Process"
    max_cache_seconds = math.inf

    async def read(self, credential: str, now: float) -> Identity:  # noqa: ARG002 - the contract's signature
        owner = owner_name(unquote(credential))
        return Identity(frozenset({owner}), (), tenant=owner)


class RunningRequest(NamedTuple):
    """A running request. Call its methods from any thread. ``leave`` does nothing once the answer is complete."""

    exchange: InProcessExchange
    calls: LoopCalls

    def record_read(self, size: int) -> None:
        self.calls(self.exchange.record_read, size)

    def leave(self) -> None:
        if not self.exchange.has_ended:
            self.calls(self.exchange.leave)


class EmbeddedService:
    """A running service. Its thread serves when the constructor returns; the end of the process closes it, too.

    Args:
        store: The open store. Closing the service closes it.
        settings: The settings in force.
        core: The loop and the clock of the use cases, by default the usual ones.
        file: The store's file in ``_open_files``, which is removed when the service has ended.

    Attributes:
        service: The use cases.
    """

    def __init__(self, store: Store, settings: Settings, core: Core | None = None, *, file: Path | None = None) -> None:
        app = make_app(
            store,
            limits=Limits(**select_settings(settings, Limits.__struct_fields__)),
            readers=[InProcessCaller()],
            publish_metrics=False,
            core=core,
        )
        self.service = app.service
        self.gateway = make_gateway(app, settings)
        self._loop = new_loop()
        self._calls = LoopCalls(self._loop)
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._is_closed = self._is_ending = self._is_forked = self._is_exiting = False
        self._file = file
        started: Future[None] = Future()
        self.thread = threading.Thread(target=self._run_loop, args=(started,), name="queuey-embedded", daemon=True)
        self.thread.start()
        started.result()
        register_forkable(self)
        atexit.register(self._close_at_exit)

    @classmethod
    def open(cls, store: str | Path, application: str, options: Mapping[str, str]) -> EmbeddedService:
        """Opens a store and starts its service. Creates the application in a SQLite store if it is missing.

        Raises:
            InvalidArgument, ServiceUnavailable: See :func:`queuey.embedded.open`.
        """
        location = _store_settings(store)
        if duplicates := sorted(location.keys() & options.keys()):
            raise InvalidArgument(f"settings has {duplicates[0]!r}: name the store by the first argument only")
        try:
            loaded = load({**options, **location}, os.environ, source="settings[{!r}]".format)
            check_store_settings(loaded)
            settings = loaded.settings
            if is_cassandra(settings):
                return cls._start(settings)
            file = store_path(settings).resolve()
            _check_store_file(file)
            _open_files.append(file)
            try:
                return cls._start(settings, application, file)
            except BaseException:
                _open_files.remove(file)
                raise
        except InvalidArgument:
            raise
        except (SettingsError, ValueError) as error:
            raise InvalidArgument(str(error)) from error
        except QueueyError as error:
            raise as_client_error(error) from error
        except OSError as error:
            unusable = StoreUnavailable(f"{store} cannot be used: {error.strerror or error}")
            raise as_client_error(unusable) from error

    @classmethod
    def _start(cls, settings: Settings, application: str = "", file: Path | None = None) -> EmbeddedService:
        store = open_store(settings)
        try:
            if file is not None:
                with suppress(ApplicationExists):
                    bridge.run(store.applications.create_application(application))
            return cls(store, settings, file=file)
        except BaseException:
            store.close()
            raise

    def begin(self, head: RequestHead, body: bytes, put: Callable[[Part], object]) -> RunningRequest:
        """Starts to answer a request in the loop's thread.

        Args:
            head: The request's head.
            body: The request's body.
            put: Called with each part of the answer, in the loop's thread. Must not block.

        Raises:
            InvalidArgument: The service is closed, or belongs to a parent process.
        """
        if self._is_forked:
            raise InvalidArgument(
                "the embedded service belongs to the parent process: fork first, and open the store in the child"
            )
        exchange = InProcessExchange(self._loop, body, put)
        with self._lock:  # A request that starts before close() is answered before it ends.
            if not self._is_closed:
                self._calls(self._spawn, head, exchange)
                return RunningRequest(exchange, self._calls)
        if self._is_exiting and threading.current_thread().daemon:
            threading.Event().wait()  # The process ends, and this thread with it: an error would only be printed.
        raise InvalidArgument("the client is closed")

    def _spawn(self, head: RequestHead, exchange: InProcessExchange) -> None:
        task = self._loop.create_task(self._answer(head, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, head: RequestHead, exchange: InProcessExchange) -> None:
        try:
            await self.gateway.answer(head, exchange)
        except Exception:
            logger.exception("a request to the embedded service failed")
        finally:
            exchange.end()

    # Start and shutdown

    def _run_loop(self, started: Future[None]) -> None:
        try:
            self._loop.run_until_complete(self._serve(started))
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self, started: Future[None]) -> None:
        self.gateway.start(self._loop)
        self.service.start_background_work()
        started.set_result(None)
        await self._stop.wait()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
        await self.service.end(LEAVE_TIMEOUT)
        self.gateway.stop()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def close(self) -> None:
        """Shuts the service down. Idempotent. After an interrupted call, the next one tries again.

        Does nothing in a forked child.
        """
        with self._lock:
            if self._is_ending or self._is_forked:
                return
            self._is_ending = self._is_closed = True
        try:
            self.service.stopping.set()
            self._calls(self._stop.set)
            self.thread.join()
            self.service.leave(LEAVE_TIMEOUT)
            self.service.store.close(CLOSE_TIMEOUT)
        except BaseException:
            self._is_ending = False
            self._file = None  # A connection may stay open, so keep the file in _open_files.
            raise
        atexit.unregister(self._close_at_exit)
        if self._file is not None:
            _open_files.remove(self._file)

    def _close_at_exit(self) -> None:
        self._is_exiting = True
        self.close()

    def begin_in_child(self) -> None:
        """Makes the service unusable in a forked child, but keeps its objects, as their files are the parent's."""
        self._is_forked = True
        self._lock = threading.Lock()
        _inherited_services.append(self)
        _inherited_files.update(_open_files)
        _open_files.clear()


def as_client_error(error: QueueyError) -> ApiError:
    response = error_response_without_request(error)
    headers = {name.lower(): value for name, value in response.headers}
    return read_error(HttpAnswer(response.status, headers, response.length_and_body(head=False)[1]))


def _store_settings(store: str | Path) -> dict[str, str]:
    if isinstance(store, str) and "://" in store:
        if not store.startswith("cassandra://"):
            raise InvalidArgument(f"{store!r} is not a store: give a path, or cassandra://host1,host2/keyspace")
        return {"store": store}
    if not str(store):
        raise InvalidArgument("the path of the store is empty")
    # Absolute, because the working directory may change before a connection is opened.
    return {"store": "sqlite", "data": str(Path(store).absolute())}


def _check_store_file(file: Path) -> None:
    """Checks that others cannot replace the store's file, and that this process can lock it.

    Raises:
        InvalidArgument: All users may write to the directory, or the file is or was open outside of a service.
    """
    try:
        directory = file.parent.stat()
    except OSError:
        return  # Opening the store creates the directory, or raises the error.
    is_sticky = directory.st_mode & stat.S_ISVTX and directory.st_uid in {0, os.geteuid()}
    if directory.st_mode & stat.S_IWOTH and not is_sticky:
        text = f"all users may write to the directory {file.parent}, and so could replace the store"
        raise InvalidArgument(f"{text}. Choose another directory, or run: chmod o-w {file.parent}")
    if file in _inherited_files:
        raise InvalidArgument(
            f"{file} was open in the parent process when it forked this one, so SQLite cannot lock it here. "
            "Fork first, or start the child with spawn"
        )
    was_open = file in _open_files
    if _is_open_here(file) and not was_open and file not in _open_files:  # Another thread may have opened it.
        raise InvalidArgument(
            f"{file} is open in this process, perhaps by sqlite3: when that closes it, the store loses its locks. "
            "Close it first, or open the file in another process"
        )


def _is_open_here(file: Path) -> bool:
    """Returns whether this process has the file open, under any name. False on systems without ``/proc``."""
    with suppress(OSError):
        status = file.stat()
        for opened in _FILE_HANDLES_DIRECTORY.iterdir():
            with suppress(OSError):
                if os.path.samestat(opened.stat(), status):
                    return True
    return False
