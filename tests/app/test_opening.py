"""From settings to the options of a store, and errors that only the store can find."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from queuey import settings
from queuey.app import opening
from queuey.model.errors import SettingsError, StoreUnavailable
from queuey.settings.definitions import ReadLevel, WriteLevel
from queuey.storage.cassandra.cluster.options import READ_LEVELS, WRITE_LEVELS, CassandraOptions
from tests.servers.processes import run_to_end
from tests.servers.served import environment

CASSANDRA = {"QUEUEY_STORE": "cassandra://h1,h2:9043/Space"}
TLS = Path(__file__).parents[1] / "acceptance" / "tls"


def test_defaults_are_those_of_the_store() -> None:
    """A store opened with empty settings has its default options."""
    loaded = settings.load({}, CASSANDRA)
    opening.check_store_settings(loaded)
    assert opening.cassandra_options(loaded.settings) == CassandraOptions(follow=True)
    assert opening.cassandra_target(loaded.settings).url == "cassandra://h1,h2:9043/space"


def test_every_choice_reaches_the_store() -> None:
    """Every setting reaches the store's options, with the password read from its place."""
    environ = CASSANDRA | {
        "QUEUEY_CASSANDRA_USER": "me",
        "QUEUEY_CASSANDRA_PASSWORD": "env:PW",
        "QUEUEY_CASSANDRA_TLS_CA": str(TLS / "cert.pem"),
        "QUEUEY_CASSANDRA_TLS_HOSTNAME": "off",
        "QUEUEY_CASSANDRA_LOCAL_DC": "berlin",
        "QUEUEY_CASSANDRA_TIMEOUT": "2",
        "QUEUEY_CASSANDRA_SPECULATIVE": "0",
        "QUEUEY_CONSISTENCY_STRONG": "write=ALL,read=ONE",
        "QUEUEY_CONSISTENCY_CATALOGUE": "serial=LOCAL_SERIAL",
        "QUEUEY_DEADLINE": "9",
        "QUEUEY_DEFAULT_TTL": "60",
    }
    chosen = opening.cassandra_options(settings.load({}, environ).settings, jobs=False, environ={"PW": "secret"})
    assert (chosen.user, chosen.password, chosen.tls_ca) == ("me", "secret", TLS / "cert.pem")
    assert (chosen.tls_hostname, chosen.local_dc, chosen.timeout, chosen.speculative) == (False, "berlin", 2, 0)
    assert (chosen.deadline, chosen.default_ttl) == (9, 60)
    strong = chosen.levels["strong"]
    assert (strong.write, strong.read) == ("ALL", "ONE")
    assert (chosen.catalogue_serial, chosen.reap_interval) == ("LOCAL_SERIAL", None)
    assert "secret" not in repr(chosen)


def test_every_option_of_a_deployment_is_a_setting() -> None:
    """Each option of the store is a setting, or listed as an exception."""
    internal = {
        *("follow", "row_age", "clock_difference", "max_pending", "cached_queues", "catalogue_deadline", "heartbeat"),
        *("reap_interval", "reap_after"),
    }
    elsewhere = {"levels", "deadline", "default_ttl"}
    elsewhere |= {"catalogue_write", "catalogue_read", "catalogue_serial"}
    names = {line.name for line in settings.table()}
    missing = {field.name for field in fields(CassandraOptions)} - internal - elsewhere
    assert {name for name in missing if f"cassandra_{name}" not in names} == set()


def test_consistency_levels_are_those_of_the_store() -> None:
    """The levels of the setting are those of the store, and ``auto``."""
    assert get_args(WriteLevel) == ("auto", *WRITE_LEVELS)
    assert get_args(ReadLevel) == ("auto", *READ_LEVELS)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"QUEUEY_STORE": "cassandra://host"}, ["keyspace", "QUEUEY_STORE"]),
        ({"QUEUEY_STORE": "cassandra://h:1,i:2/k"}, ["ports"]),
        (CASSANDRA | {"QUEUEY_MAX_BODY": "8000000"}, ["max_body", "4194304", "QUEUEY_MAX_BODY"]),
        (CASSANDRA | {"QUEUEY_CASSANDRA_TLS_CERT": "c.pem"}, ["certificate and its key"]),
        (CASSANDRA | {"QUEUEY_CASSANDRA_TLS_CA": "/nowhere.pem"}, ["TLS files", "No such file"]),
        (
            CASSANDRA | {"QUEUEY_CASSANDRA_USER": "u", "QUEUEY_CASSANDRA_PASSWORD": "file:/nowhere"},
            ["file:/nowhere", "No such file"],
        ),
    ],
    ids=lambda value: " ".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else "",
)
def test_what_the_store_refuses_names_where_it_came_from(environ: dict[str, str], words: list[str]) -> None:
    """Values that the store refuses prevent a start, with the reason and the source."""
    with pytest.raises(SettingsError) as caught:
        opening.check_store_settings(settings.load({}, environ))
    assert [word for word in words if word not in str(caught.value)] == []


def test_sqlite_is_left_alone() -> None:
    """A limit of Cassandra does not apply to the embedded store."""
    opening.check_store_settings(settings.load({"max_body": "8000000"}, {}))


def test_patience_ends() -> None:
    """A read is repeated until the store answers, and its last error is raised when time is over."""
    answers = [StoreUnavailable("not yet"), StoreUnavailable("not yet"), "here"]

    def call() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert opening.retry_until_available(call, 10) == "here"
    answers[:] = [StoreUnavailable("still not")]
    with pytest.raises(StoreUnavailable, match="still not"):
        opening.retry_until_available(call, 0)


def run_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.modules[{module!r}] = None; from queuey.cli import main; main()"
    return run_to_end([sys.executable, "-c", program, *arguments], env=environment())


@pytest.mark.needs_programs
def test_the_embedded_store_needs_no_cassandra_driver(tmp_path: Path) -> None:
    """Without cassandra-driver the SQLite store works."""
    from queuey.storage.sqlite import open_store  # noqa: PLC0415 - only this test needs a store

    open_store(tmp_path / "data").close()
    ended = run_without("cassandra", "app", "create", "a", "--data", str(tmp_path / "data"))
    assert (ended.returncode, ended.stdout.split()[:2]) == (0, ["application", "a"])


@pytest.mark.needs_programs
def test_the_cassandra_store_needs_no_sqlite_driver() -> None:
    """Without apsw a Cassandra store can be opened; here no node answers at the address."""
    ended = run_without("apsw", "app", "list", "--store", "cassandra://127.0.0.1:1/k")
    assert (ended.returncode, "refused" in ended.stderr) == (1, True), ended.stderr
