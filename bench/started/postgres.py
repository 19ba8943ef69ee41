"""Runs Postgres, if it is installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Skip, Void
from tests.servers.served import free_port

USER = "postgres"
"""User of the server if this process runs as root, because Postgres refuses to run as root."""


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[str]:
    """Runs a new server with default settings and its data in the directory; yields its address.

    As root, lets other users enter the directory and its parent, and runs the server as :data:`USER`.

    Raises:
        Skip: Postgres is not installed, or cannot run here.
        Void: The server did not start.
    """
    programs = find_programs_directory()
    user = USER if os.geteuid() == 0 else None
    data = directory / "data"
    data.mkdir()
    if user is not None:
        # By default, only the owner can enter a temporary directory.
        for path in (directory, directory.parent):
            path.chmod(0o711)
        shutil.chown(data, user)
    port = free_port()
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c max_connections=100"
    control = [str(programs / "pg_ctl"), "-D", str(data), "-s", "-w"]
    initialise = [str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale"]
    for command in (initialise, [*control, "-l", str(data / "log"), "-o", options, "start"]):
        process = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, user=user, cwd="/", check=False
        )
        if process.returncode:
            raise Void(f"{Path(command[0]).name}: {process.stderr}")
    try:
        yield f"host=127.0.0.1 port={port} user={USER} dbname=postgres"
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], user=user, cwd="/", check=False)


def find_programs_directory() -> Path:
    """Returns the directory of Postgres' programs: the newest of Debian's packages, else the one on the PATH.

    Raises:
        Skip: Postgres is not installed; or this process is root, and there is no user that could run it.
    """
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    on_path = shutil.which("initdb")
    if not debian and on_path is None:
        raise Skip("needs Postgres, which is not installed")
    if os.geteuid() == 0 and USER not in {entry.pw_name for entry in pwd.getpwall()}:
        raise Skip(f"Postgres does not run as root, and there is no user {USER}")
    return debian[-1].parent if debian else Path(str(on_path)).parent
