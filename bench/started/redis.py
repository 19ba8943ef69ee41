"""A Redis server, if Redis is installed, that syncs its log before it answers a command."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Skip
from bench.started.processes import Process, launched
from tests.servers.served import free_port

START_SECONDS = 20.0


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[tuple[str, Process]]:
    """Runs a new server with its data in the directory; yields its URL and its process.

    Raises:
        Skip: Redis is not installed.
        Void: The server did not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise Skip("needs redis-server, which is not installed")
    port = free_port()
    options = {
        "--bind": "127.0.0.1",
        "--port": str(port),
        "--dir": str(directory),
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": "always",
    }
    command = [program, *(text for pair in options.items() for text in pair)]
    with launched("redis", command, port, directory) as process:
        process.wait_until(lambda: answers(port), START_SECONDS)
        yield f"redis://127.0.0.1:{port}/0", process


def answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")
