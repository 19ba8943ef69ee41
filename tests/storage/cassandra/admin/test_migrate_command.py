"""Tests of ``queuey migrate`` as a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuey.storage.cassandra import CassandraOptions
from queuey.storage.cassandra.admin import migrations
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import DataCentreTarget
from tests.servers.plugin import Cassandra, unique_name
from tests.servers.processes import run_to_end


def run(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEY_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    variables = environment | {"HOME": str(directory)}
    return run_to_end([sys.executable, "-m", "queuey", "migrate", *arguments], env=variables, cwd=directory)


@pytest.fixture
def target(cassandra: Cassandra) -> Iterator[DataCentreTarget]:
    """Names a keyspace that does not exist yet; dropped at the end."""
    new_target = DataCentreTarget(tuple(cassandra.contact_points), unique_name("command"), cassandra.port)
    yield new_target
    driver = Driver(new_target, CassandraOptions(), keyspace=False)
    assert driver.ready(60)
    driver.run(Statement.make_unprepared(f"DROP KEYSPACE IF EXISTS {new_target.keyspace}"), timeout=60.0)
    driver.close()


def test_from_a_plan_to_the_tables(target: DataCentreTarget, tmp_path: Path) -> None:
    """A run does what the dry run has shown; results go to standard output, progress to standard error."""
    names = [migration.name for migration in migrations.read_known_migrations()]
    missing = run("--store", target.url, directory=tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "--replication" in missing.stderr
    plan = run("--store", target.url, "--replication", "1", "--dry-run", "--json", directory=tmp_path)
    assert plan.returncode == 0, plan.stderr
    planned = json.loads(plan.stdout)
    assert (planned["keyspace"], planned["migrations"], planned["dry_run"]) == (target.keyspace, names, True)
    script = run("--store", target.url, "--replication", "1", "--dry-run", directory=tmp_path)
    assert migrations.split_statements(script.stdout) == [
        line for migration in migrations.read_known_migrations() for line in migration.statements
    ]
    made = run("--store", target.url, "--replication", "1", directory=tmp_path)
    assert made.returncode == 0, made.stderr
    assert [line.partition(":")[0] for line in made.stderr.splitlines()] == [
        f"keyspace {target.keyspace}",
        *names,
        "times",
    ]
    assert made.stdout.startswith(f"Keyspace {target.keyspace} is up to date")
    again = run("--store", target.url, "--json", directory=tmp_path)
    assert json.loads(again.stdout) == planned | {"replication": None, "migrations": [], "dry_run": False}


@pytest.mark.needs_programs
def test_without_cassandra(tmp_path: Path) -> None:
    """For a SQLite store the command says that no migration is needed, and creates no store."""
    sqlite = run(directory=tmp_path)
    assert (sqlite.returncode, sqlite.stdout) == (2, "")
    assert "--store" in sqlite.stderr
    assert list(tmp_path.iterdir()) == []
