"""Postgres as a baseline, where it is installed: a table of messages, one insert a transaction by pgbench."""

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
"""Whom the server runs as where this process is root's, which Postgres refuses."""
CONNECTIONS = 64
TABLE = """
CREATE TABLE messages (
  queue bigint NOT NULL, partition int NOT NULL, id bigserial, expires timestamptz NOT NULL, body text NOT NULL,
  PRIMARY KEY (queue, partition, id)
)
"""
INSERT = f"INSERT INTO messages (queue, partition, expires, body) VALUES (1, 1, now() + '3 days', '{bodies(1)[0]}');\n"


class Postgres:
    """A server whose defaults hold: each commit is on the disk before it is answered."""

    def __init__(self, programs: Path, directory: Path, port: int) -> None:
        self._programs = programs
        self._directory = directory
        self._port = port
        self._script = directory / "insert.sql"
        self._script.write_text(INSERT, "utf-8")

    @property
    def address(self) -> str:
        """How libpq is told where it is."""
        return f"host=127.0.0.1 port={self._port} user={USER} dbname=postgres"

    def inserts(self, seconds: float) -> Sample:
        """Lets pgbench insert messages over TCP, prepared, one a transaction.

        Raises:
            Void: A transaction failed.
        """
        options = ["-n", "-M", "prepared", "-c", str(CONNECTIONS), "-T", str(max(1, round(seconds)))]
        told = self._run("pgbench", *options, "-f", str(self._script), "postgres")
        rate = re.search(r"tps = ([\d.]+)", told)
        if rate is None or "failed transactions: 0 " not in told:
            raise Void(told)
        return Sample(rate=float(rate[1]))

    def make_table(self) -> None:
        """Makes the table.

        Raises:
            Void: It could not.
        """
        self._run("psql", "-v", "ON_ERROR_STOP=1", "-c", TABLE, "postgres")

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._programs / program), "-h", "127.0.0.1", "-p", str(self._port), "-U", USER, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Void(f"{program}: {done.stderr}")
        return done.stdout


@contextlib.contextmanager
def serve(directory: Path) -> Iterator[Postgres]:
    """Runs a server of its own whose data lies in the directory.

    Raises:
        Skip: Postgres is not installed, or may not run here.
        Void: It did not start.
    """
    programs = found()
    user = USER if os.geteuid() == 0 else None
    data = directory / "data"
    data.mkdir()
    if user is not None:
        # Directories for temporary data are their owner's alone.
        for path in (directory, directory.parent):
            path.chmod(0o711)
        shutil.chown(data, user)
    port = free_port()
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c max_connections=100"
    control = [str(programs / "pg_ctl"), "-D", str(data), "-s", "-w"]
    initialise = [str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale"]
    for command in (initialise, [*control, "-l", str(data / "log"), "-o", options, "start"]):
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, user=user, cwd="/", check=False
        )
        if done.returncode:
            raise Void(f"{Path(command[0]).name}: {done.stderr}")
    try:
        postgres = Postgres(programs, directory, port)
        postgres.make_table()
        yield postgres
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], user=user, cwd="/", check=False)


def found() -> Path:
    """Returns the directory of Postgres' programs: the newest that Debian's packages have, or that of the PATH.

    Raises:
        Skip: There is none.
    """
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), key=lambda path: float(path.parts[4]))
    on_path = shutil.which("initdb")
    if not debian and on_path is None:
        raise Skip("needs Postgres with pgbench, which is not installed")
    if os.geteuid() == 0 and USER not in {entry.pw_name for entry in pwd.getpwall()}:
        raise Skip(f"Postgres does not run as root, and there is no user {USER}")
    return debian[-1].parent if debian else Path(str(on_path)).parent
