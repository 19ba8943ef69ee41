"""Postgres as a baseline, if it is installed: pgbench inserts messages into a table, one per transaction."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Skip, Void
from bench.load.traffic import Sample, bodies
from tests.servers.served import free_port

USER = "postgres"
"""User of the server if this process runs as root, because Postgres refuses to run as root."""
CONNECTIONS = 64
TABLE = """
CREATE TABLE messages (
  queue bigint NOT NULL, partition int NOT NULL, id bigserial, expires timestamptz NOT NULL, body text NOT NULL,
  PRIMARY KEY (queue, partition, id)
)
"""
INSERT = f"INSERT INTO messages (queue, partition, expires, body) VALUES (1, 1, now() + '3 days', '{bodies(1)[0]}');\n"


class Postgres:
    """A server with default settings: each commit is on disk before it is acknowledged."""

    def __init__(self, programs: Path, directory: Path, port: int) -> None:
        self._programs = programs
        self._directory = directory
        self._port = port
        self._script = directory / "insert.sql"
        self._script.write_text(INSERT, "utf-8")

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self._port} user={USER} dbname=postgres"

    def run_pgbench(self, seconds: float) -> Sample:
        """Inserts messages with pgbench over TCP: prepared, one per transaction.

        Raises:
            Void: A transaction failed.
        """
        options = ["-n", "-M", "prepared", "-c", str(CONNECTIONS), "-T", str(max(1, round(seconds)))]
        output = self._run_program("pgbench", *options, "-f", str(self._script), "postgres")
        rate = re.search(r"tps = ([\d.]+)", output)
        if rate is None or "failed transactions: 0 " not in output:
            raise Void(output)
        return Sample(rate=float(rate[1]))

    def make_table(self) -> None:
        self._run_program("psql", "-v", "ON_ERROR_STOP=1", "-c", TABLE, "postgres")

    def _run_program(self, program: str, *arguments: str) -> str:
        """Runs one of Postgres' programs on this server; returns its output. Raises Void if it failed."""
        command = [str(self._programs / program), "-h", "127.0.0.1", "-p", str(self._port), "-U", USER, *arguments]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise Void(f"{program}: {process.stderr}")
        return process.stdout


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[Postgres]:
    """Runs a new server with its data in the directory, and creates the table of messages.

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
        postgres = Postgres(programs, directory, port)
        postgres.make_table()
        yield postgres
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], user=user, cwd="/", check=False)


def find_programs_directory() -> Path:
    """Returns the directory of Postgres' programs: the newest of Debian's packages, else the one on the PATH.

    Raises:
        Skip: Postgres is not installed; or this process is root, and there is no user that could run it.
    """
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), key=lambda path: float(path.parts[4]))
    on_path = shutil.which("initdb")
    if not debian and on_path is None:
        raise Skip("needs Postgres with pgbench, which is not installed")
    if os.geteuid() == 0 and USER not in {entry.pw_name for entry in pwd.getpwall()}:
        raise Skip(f"Postgres does not run as root, and there is no user {USER}")
    return debian[-1].parent if debian else Path(str(on_path)).parent
