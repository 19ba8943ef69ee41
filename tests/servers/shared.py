"""Servers that all processes of a run share. The controlling process starts each of them when first requested.

A worker process of pytest-xdist asks over a Unix socket and waits. It reads the log of a server directly.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from deploy.local import ServersError

LINES = 60
"""Max lines of a log in a report."""


@dataclass(frozen=True)
class SharedServer:
    """The facts about a server that a worker process gets.

    Attributes:
        address: As in the environment variables: ``host:port``.
        log: The server's log; None if it is in a container.
    """

    address: str
    log: Path | None = None

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log and self.log.exists() else 0

    def log_tail(self, *, since: int) -> str:
        """Returns the last :data:`LINES` lines logged after ``since`` bytes; empty without a log."""
        text = self.log.read_bytes()[since:].decode("utf-8", "replace") if self.log and self.log.exists() else ""
        return "\n".join(text.splitlines()[-LINES:])


class SharedServers:
    """Starts servers by name in the controlling process, each at most once, and ends them all.

    Args:
        starts: A function for each that starts it. Its end is registered on the given stack.
    """

    def __init__(self, starts: Mapping[str, Callable[[ExitStack], SharedServer]]) -> None:
        self._starts = starts
        self._opened = ExitStack()
        self._locks = {name: threading.Lock() for name in starts}
        self._answers: dict[str, SharedServer | ServersError] = {}
        self._listener: Listener | None = None

    def start(self, name: str) -> SharedServer:
        """Returns a server, started if necessary.

        Raises:
            ServersError: It could not be started, now or before.
        """
        return _raise_or_return(self._start_once(name))

    def listen(self) -> str:
        """Returns the path of the socket for :func:`request_server`, which it serves from the first call on."""
        if self._listener is None:
            directory = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="queuey-shared-"))
            self._listener = Listener(str(Path(directory) / "servers.sock"), "AF_UNIX")
            threading.Thread(target=self._serve, args=(self._listener,), name="shared servers", daemon=True).start()
        return str(self._listener.address)

    def close(self) -> None:
        """Ends the servers, once none is being started any more. Later requests wait without end."""
        if self._listener is not None:
            self._listener.close()
        for lock in self._locks.values():
            lock.acquire()
        self._opened.close()

    def _serve(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer_request, args=(connection,), daemon=True).start()

    def _answer_request(self, connection: Connection) -> None:
        with connection:
            connection.send(self._start_once(connection.recv()))

    def _start_once(self, name: str) -> SharedServer | ServersError:
        """Starts a server at the first request for it. Later requests get the same server, or the same error."""
        with self._locks[name]:
            if name not in self._answers:
                try:
                    self._answers[name] = self._starts[name](self._opened)
                except ServersError as error:
                    self._answers[name] = ServersError(str(error))
            return self._answers[name]


def request_server(socket: str, name: str) -> SharedServer:
    """Returns a server of the controlling process, started if necessary.

    Raises:
        ServersError: It could not be started.
    """
    with Client(socket, "AF_UNIX") as connection:
        connection.send(name)
        return _raise_or_return(connection.recv())


def _raise_or_return(answer: SharedServer | ServersError) -> SharedServer:
    if isinstance(answer, ServersError):
        raise answer
    return answer
