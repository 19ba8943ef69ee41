"""Redis, where it is installed, with a log that is on the disk before a command is answered."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Skip, Void
from bench.started.processes import Process, launched
from tests.servers.served import free_port

START_SECONDS = 20.0


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[str]:
    """Runs a server of its own whose data lies in the directory; gives its URL.

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
        wait_until_serving(process)
        yield f"redis://127.0.0.1:{port}/0"


def wait_until_serving(process: Process) -> None:
    """Waits until it answers a PING.

    Raises:
        Void: It ended, or the time is up.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.child.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", process.port), timeout=1) as asked:
            asked.sendall(b"PING\r\n")
            if asked.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise Void(f"redis does not answer:\n{process.log_tail()}")
