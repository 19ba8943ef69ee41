"""Redis, where it is installed, with a log that is on the disk before a command is answered."""

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
    """Runs a server of its own whose data lies in the directory; gives its URL and its process.

    Raises:
        Skip: Redis is not installed.
        Void: It did not start.
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
    """Returns whether it answers a PING."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as asked:
        asked.sendall(b"PING\r\n")
        return asked.recv(16).startswith(b"+PONG")
