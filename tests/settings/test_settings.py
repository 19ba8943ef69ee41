"""Settings: the sources of values, and the values that prevent a start."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from qdo.cli.settings import load as load_work
from queuey import settings
from queuey.app import opening
from queuey.model.errors import SettingsError
from queuey.runtime.limits import Limits
from queuey.settings import SecretName
from queuey.settings.definitions import WeakConsistency, patterns_of
from queuey.storage.sqlite.connection import SqliteOptions

DOCS = Path(__file__).parents[2] / "docs"
CASSANDRA = {"QUEUEY_STORE": "cassandra://host/space"}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_nearest_source_wins(tmp_path: Path) -> None:
    """The command line beats the environment, that the file, that the default; each source is named."""
    file = write(tmp_path / "queuey.toml", "port = 1\nthreads = 1000\nworkers = 7\n")
    environ = {"QUEUEY_CONFIG": str(file), "QUEUEY_PORT": "2", "QUEUEY_WORKERS": "8"}
    loaded = settings.load({"port": "3", "host": None}, environ)
    assert (loaded.settings.port, loaded.settings.workers, loaded.settings.threads) == (3, 8, 1000)
    assert loaded.settings.host == "127.0.0.1"
    assert [loaded.sources[name] for name in ("port", "workers", "threads", "host")] == [
        "--port",
        "QUEUEY_WORKERS",
        str(file),
        "default",
    ]


def test_fields_of_a_table_come_from_the_nearest_place_that_names_them(tmp_path: Path) -> None:
    """A source that names one field of a table leaves the other fields to lower sources."""
    file = write(
        tmp_path / "queuey.toml",
        'store = "cassandra://h/k"\n[consistency.weak]\nwrite = "ALL"\nread = "ONE"\ndelay = 8\n',
    )
    environ = {"QUEUEY_CONFIG": str(file), "QUEUEY_CONSISTENCY_WEAK": " read = TWO, delay=9"}
    loaded = settings.load({"consistency.weak": "delay=10"}, environ)
    assert loaded.settings.consistency_weak == WeakConsistency(write="ALL", read="TWO", delay=10.0)
    assert loaded.sources["consistency.weak"].split(", ") == [
        str(file),
        "QUEUEY_CONSISTENCY_WEAK",
        "--consistency-weak",
    ]
    assert loaded.sources["consistency.strong"] == "default"


def test_a_table_is_shown_as_it_may_be_given() -> None:
    """The text of a table, given on the command line, makes the same table."""
    chosen = WeakConsistency(write="ALL", read="ONE", delay=1800.0625, deadline=2.0)
    text = settings.as_text(chosen)
    assert text == "write=ALL,read=ONE,delay=1800.0625,deadline=2"
    loaded = settings.load({"store": "cassandra://h/k", "consistency.weak": text}, {})
    assert loaded.settings.consistency_weak == chosen


def test_lengths_of_time_have_units(tmp_path: Path) -> None:
    """Every duration may be text with units, and a bad one gets an error with the type."""
    file = write(tmp_path / "queuey.toml", 'deadline = "1m"\nidempotency_ttl = 3600\n')
    environ = {"QUEUEY_CONFIG": str(file), "QUEUEY_MAX_WAIT": "500ms"}
    options = {"store": "cassandra://h/k", "default_ttl": "7d", "consistency.weak": "delay=1m30s"}
    loaded = settings.load(options, environ).settings
    assert (loaded.deadline, loaded.idempotency_ttl, loaded.max_wait) == (60.0, 3600, 0.5)
    assert (loaded.default_ttl, loaded.consistency_weak.delay) == (604_800, 90.0)
    for text in ("7y", "500d", "1.5", "-1"):
        with pytest.raises(SettingsError, match=re.escape(f"is {text!r}. Expected: whole seconds, 1 to 33554432.")):
            settings.load({"default_ttl": text}, {})


def test_variables_of_the_client_are_no_settings() -> None:
    """Variables of the client, foreign variables and empty ones are ignored."""
    environ = {"QUEUEY_URL": "http://x", "QUEUEY_KEY": "k", "QUEUEY_APP": "a", "QUEUEY_CA": "ca.pem"}
    assert settings.load({}, environ | {"PORT": "1", "QUEUEY_PORT": ""}).settings.port == 5000


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"QUEUEY_PROT": "1"}, ["QUEUEY_PROT", "environment", "QUEUEY_PORT"]),
        ({"QUEUEY_PORT": "99999"}, ["port", "QUEUEY_PORT", "99999"]),
        ({"QUEUEY_SYNC": "never"}, ["sync", "QUEUEY_SYNC", "never"]),
        ({"QUEUEY_MAX_WAIT": "nan"}, ["max_wait", "nan"]),
        ({"QUEUEY_STORE": "postgres://host"}, ["store", "postgres", "QUEUEY_STORE"]),
        ({"QUEUEY_STORE": "sqlite:///x"}, ["store", "data"]),
        ({"QUEUEY_STORE": "cassandra://me@host/k"}, ["store", "cassandra_user", "QUEUEY_STORE"]),
        ({"QUEUEY_CASSANDRA_TIMEOUT": "1"}, ["cassandra_timeout", "QUEUEY_CASSANDRA_TIMEOUT", "sqlite", "default"]),
        (CASSANDRA | {"QUEUEY_DATA": "x"}, ["data", "QUEUEY_DATA", "QUEUEY_STORE"]),
        (CASSANDRA | {"QUEUEY_CASSANDRA_USER": "u"}, ["cassandra_user", "cassandra_password"]),
        (CASSANDRA | {"QUEUEY_CONSISTENCY_STRONG": "write=most"}, ["consistency.strong.write", "most", "EACH_QUORUM"]),
        (
            CASSANDRA | {"QUEUEY_CONSISTENCY_STRONG": "wirte=ALL"},
            ["consistency.strong.wirte", "consistency.strong.write"],
        ),
        (CASSANDRA | {"QUEUEY_CONSISTENCY_STRONG": "ALL"}, ["consistency.strong", "'ALL'", "write=auto,read=auto"]),
        (
            {"QUEUEY_CONSISTENCY_WEAK": "write=TWO"},
            ["consistency.weak", "QUEUEY_CONSISTENCY_WEAK", "sqlite", "default"],
        ),
        (CASSANDRA | {"QUEUEY_DEADLINE": "4"}, ["deadline", "cassandra_timeout"]),
        (CASSANDRA | {"QUEUEY_CONSISTENCY_WEAK": "deadline=15"}, ["deadline", "consistency.weak"]),
        ({"QUEUEY_TLS_CERT": "c.pem"}, ["tls_cert", "tls_key"]),
        ({"QUEUEY_CONNECTIONS": "7"}, ["connections", "threads", "default"]),
        ({"QUEUEY_CONSOLE": "on", "QUEUEY_FACADES": "only=mq"}, ["console", "facades.only", "QUEUEY_CONSOLE"]),
        ({"QUEUEY_MAX_BODY": "9000000"}, ["max_batch_bytes", "max_body"]),
        ({"QUEUEY_CONFIG": "/nowhere/q.toml"}, ["/nowhere/q.toml", "No such file"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_values_name_key_and_source(environ: dict[str, str], words: list[str]) -> None:
    """Each error names the key and the source of the bad value."""
    with pytest.raises(SettingsError) as caught:
        settings.load({}, environ)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", ["prot", "port"]),
        ("[limits]\nmax_body = 1", ["limits"]),
        ("port = ", ["not TOML"]),
        ("host = 5", ["host", "5"]),
        ("[consistency.stong]\nwrite = 'ALL'", ["consistency.stong", "consistency.strong"]),
        ("consistency = 5", ["consistency"]),
        ("port = {write = 5}", ["port"]),
        ("port = true", ["port", "True"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    """An error in the settings file names the file and the key."""
    file = write(tmp_path / "bad.toml", text)
    with pytest.raises(SettingsError) as caught:
        settings.load({}, {}, config=file)
    assert [word for word in [str(file), *words] if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "environ",
    [
        {"QUEUEY_STORE": "cassandra://me:hunter2@host"},
        CASSANDRA | {"QUEUEY_CASSANDRA_PASSWORD": "hunter2"},
        CASSANDRA | {"QUEUEY_CASSANDRA_PASSWORD": "hunter2", "QUEUEY_CASSANDRA_USER": "u"},
        CASSANDRA | {"QUEUEY_CASSANDRA_PASSWORD": "env:hunter2!"},
    ],
)
def test_passwords_are_not_printed(environ: dict[str, str]) -> None:
    """A password given instead of the name of its place is refused and not repeated in the error."""
    with pytest.raises(SettingsError) as caught:
        settings.load({}, environ)
    assert "hunter2" not in str(caught.value)


def test_lists_of_settings_show_no_password() -> None:
    """Neither a store's URL nor a password given as text is listed as it is; the name of its place is."""
    assert settings.masked_text("store", "cassandra://me:hunter2@host/space") == "cassandra://me:***@host/space"
    assert settings.masked_text("cassandra_password", "hunter2") == "***"
    assert settings.masked_text("cassandra_password", SecretName("env", "P")) == "env:P"


def test_a_secret_is_read_from_its_place(tmp_path: Path) -> None:
    """A secret comes from a variable's value or a file's first line; the file is relative to the settings file."""
    (tmp_path / "password").write_text("from file\r\nand more\n")
    file = write(
        tmp_path / "q.toml", 'store = "cassandra://h/k"\ncassandra_user = "u"\ncassandra_password = "file:password"'
    )
    named = settings.load({}, {}, config=file).settings.cassandra_password
    assert named is not None
    assert named.read({}) == "from file"
    assert SecretName("env", "P").read({"P": "from variable"}) == "from variable"


@pytest.mark.parametrize("text", ["env:P", "file:/nowhere/password"])
def test_a_missing_secret_is_named(text: str) -> None:
    """If a place has no secret the error names the place."""
    with pytest.raises(SettingsError, match=text):
        SecretName.parse(text).read({})


def test_a_secret_may_be_in_a_variable_of_our_prefix() -> None:
    """A variable with our prefix that only holds a named secret is not an unknown setting."""
    environ = CASSANDRA | {"QUEUEY_CASSANDRA_USER": "u", "QUEUEY_CASSANDRA_PASSWORD": "env:QUEUEY_DB_SECRET"}
    password = settings.load({}, environ | {"QUEUEY_DB_SECRET": "s"}).settings.cassandra_password
    assert password == SecretName("env", "QUEUEY_DB_SECRET")


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    """Paths in a settings file are relative to it, in whatever directory the service is started."""
    file = write(tmp_path / "q.toml", 'data = "here"')
    assert settings.load({}, {}, config=file).settings.data == tmp_path / "here"
    assert settings.load({"data": "here"}, {}).settings.data == Path("here")


@pytest.mark.parametrize(
    ("text", "value"), [("on", True), ("Yes", True), ("1", True), ("off", False), ("false", False)]
)
def test_switches_take_everyday_words(text: str, value: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A switch can be written on/off, yes/no, true/false or 1/0."""
    assert settings.load({"metrics": f"publish={text}"}, {}).settings.metrics.publish is value


@pytest.mark.parametrize("name", ["backlog", "lag"])
def test_queues_in_metrics(name: str) -> None:
    """Operators name queues by application and pattern; invalid text is refused with the right form."""
    metrics = settings.load({"metrics": f"{name}=acme/mail* acme/jobs"}, {}).settings.metrics
    assert patterns_of(getattr(metrics, name)) == [("acme", "mail*"), ("acme", "jobs")]
    for wrong in ("acme", "/jobs", "acme/", "a*/jobs"):
        with pytest.raises(SettingsError, match=f"{name}={re.escape(wrong)}: a pattern is application/queue"):
            settings.load({"metrics": f"{name}={wrong}"}, {})


def test_every_limit_is_a_setting_or_a_constant() -> None:
    """Each limit of the service is a setting with the service's default, or a constant that docs/api.md lists."""
    limits = msgspec.structs.asdict(Limits())
    values = msgspec.structs.asdict(settings.load({}, {}).settings)
    assert limits.pop("longest_body") == 0  # made of max_body and the facades
    section = (DOCS / "api.md").read_text().partition("### Fixed limits")[2].partition("\n## ")[0]
    shown = {name: int(value.replace(",", "")) for value, name in re.findall(r"\| ([0-9,]+) \| `(\w+)` \|", section)}
    assert {name: shown[name] if name in shown else values[name] for name in limits} == limits
    assert shown.keys() <= limits.keys() - values.keys()


def test_store_defaults_agree() -> None:
    """A store opened without settings and one opened with the defaults behave the same."""
    chosen = settings.load({}, {}).settings
    assert opening.sqlite_options(chosen) == SqliteOptions()
    assert opening.sqlite_options(chosen, jobs=False) == SqliteOptions(sweep_interval=None)


def test_waiting_for_a_lock_leaves_room_below_the_deadline() -> None:
    """A call waits for another process's lock for at most a third of its deadline."""
    options = opening.sqlite_options(settings.load({"deadline": "1.5"}, {}).settings)
    assert (options.busy_timeout, options.deadline) == (0.5, 1.5)


def test_there_are_no_more_than_45() -> None:
    """A new setting beyond 45 must replace another one: see the decision about settings."""
    assert len(settings.table()) <= 45


def kubernetes_variables(service: str, *ports: tuple[str, int, str]) -> dict[str, str]:
    name = service.upper().replace("-", "_")
    _, first, kind = ports[0]
    variables = {f"{name}_SERVICE_HOST": "10.0.0.7", f"{name}_SERVICE_PORT": str(first)}
    variables |= {f"{name}_PORT": f"{kind}://10.0.0.7:{first}"}
    for port, number, kind in ports:
        prefix = f"{name}_PORT_{number}_{kind.upper()}"
        variables |= {f"{name}_SERVICE_PORT_{port.upper()}": str(number)} if port else {}
        variables |= {prefix: f"{kind}://10.0.0.7:{number}", f"{prefix}_PROTO": kind}
        variables |= {f"{prefix}_PORT": str(number), f"{prefix}_ADDR": "10.0.0.7"}
    return variables


@pytest.mark.parametrize("service", ["queuey", "queuey-metrics", "qdo", "qdo-metrics"])
def test_variables_of_kubernetes(service: str) -> None:
    """A Service with our name changes no setting of the service or of workers; settings beside it count."""
    beside = kubernetes_variables(service, ("http", 5000, "tcp"), ("", 5001, "udp"), ("x_y", 5002, "sctp"))
    assert settings.load({}, beside) == settings.load({}, {})
    assert load_work({}, beside) == load_work({}, {})
    environ = beside | {"QUEUEY_WORKERS": "3", "QDO_THREADS": "4", "QUEUEY_URL": "http://a"}
    assert settings.load({}, environ).settings.workers == 3
    work = load_work({}, environ)
    assert (work.worker.threads, work.url) == (4, "http://a")
    for name in ("QUEUEY_PORT", "QUEUEY_SERVICE", "QUEUEY_PORT_5000"):
        with pytest.raises(SettingsError, match=name):
            settings.load({}, beside | {name: "x"})
