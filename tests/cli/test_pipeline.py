"""What all jobs of ``queuey pipeline`` have in common, and what its commands refuse before they start Spark."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from queuey import settings
from queuey.cli import main
from queuey.cli.operations.store_options import ConfiguredStore
from queuey.cli.pipeline import COMMANDS, load
from queuey.cli.pipeline.pipe import stop_by_signals
from queuey.client.credentials.profile import Profile, write_profile
from queuey.model.deadletters import Redriven, UnsentDeadLetter
from queuey.model.messages import QueueSpec
from queuey.pipeline import pipe
from queuey.pipeline.deadletter import deadletter_job
from queuey.pipeline.deadletter.deadletter_job import DeadLetterClasses
from queuey.pipeline.deadletter.selection import DeadLetterSample, ErrorClass
from queuey.pipeline.pipe import Piped, Preview
from queuey.spark.session import session
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from tests.commands import Run, make_runner
from tests.replacing import replace

Job = Callable[..., list[Any]]

CLASS = ErrorClass(
    queue="or\x1bders",
    error="acme.Late",
    text="order … is late",
    count=2,
    first=1_795_000_000.0,
    last=1_795_000_001.0,
    attempts=3,
    samples=(DeadLetterSample(1_795_000_001.0, "orders.dead", 1, "a" * 32, "order 7 is late"),),
)


PIPED = ("--checkpoint", "c", "--sql", "SELECT 1 FROM messages")
"""What a pipe is given beside its queues."""


class FirstStepReached(Exception):
    """Raised by a command's first step, when nothing was refused."""


@pytest.fixture
def starts() -> Iterator[list[dict[str, Any]]]:
    """Records how Spark would have been started; each start raises FirstStepReached instead."""
    started: list[dict[str, Any]] = []

    def start(**options: Any) -> None:  # noqa: ANN401 - what the session is given
        started.append(options)
        raise FirstStepReached

    with replace(session, start):
        yield started


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Creates the application ``acme`` in a data directory of the test, and runs commands on it."""
    with closing(open_store(tmp_path)) as store:
        bridge.run(store.applications.create_application("acme"))
    monkeypatch.setenv("QUEUEY_PROFILE", str(tmp_path / "profile.toml"))
    monkeypatch.delenv("QUEUEY_APP", raising=False)
    monkeypatch.setenv("QUEUEY_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return make_runner("queuey", main, monkeypatch)


def make_queues(place: Path, *names: str) -> None:
    with closing(open_store(place)) as store:
        for name in names:
            bridge.run(store.catalogue.create_queue("acme", name, QueueSpec()))


class Session:
    """Replaces a Spark session."""

    def stop(self) -> None:
        pass


@pytest.fixture
def job() -> Iterator[Job]:
    """Replaces a job by one that returns reports, the last one again and again; returns the list of its arguments."""
    with ExitStack() as replaced:
        replaced.enter_context(replace(session, lambda **_: Session()))

        def reporting(job: Callable[..., object], *reports: object) -> list[Any]:
            received: list[Any] = []
            remaining = list(reports)

            def instead(_spark: object, *arguments: object, **_: object) -> object:
                received.extend(arguments)
                return remaining.pop(0) if len(remaining) > 1 else remaining[0]

            replaced.enter_context(replace(job, instead))
            return received

        yield reporting


def test_every_job_has_a_command() -> None:
    """Each loads, and has the options that all jobs have."""
    common = {"--data", "--store", "--config", "--app", "--master", "--conf", "--json", "--dry-run"}
    for name in COMMANDS:
        command = load(name)
        for subcommand in getattr(command, "commands", {"": command}).values():
            options = {option for parameter in subcommand.params for option in parameter.opts}
            assert common - options == set(), (name, subcommand.name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["deadletter", "classes"], "name the queue that the dead letters came from"),
        (["deadletter", "redrive", "--queue", "a", "--ttl", "0"], "'0' is not between 1 s and 388 d"),
        (["pipe"], "--to QUEUE and --route"),
        (["pipe", "a", "--to", "b", "--sql", "SELECT 1 FROM messages"], "--checkpoint"),
        (["pipe", "a", "--to", "b", "--checkpoint", "c"], "one transform"),
        (["pipe", "a", "--to", "b", "--checkpoint", "c", "--sql", "@missing.sql"], "cannot be read"),
        (
            ["pipe", "a", "--to", "a", "--checkpoint", "c", "--sql", "SELECT 1 FROM messages"],
            "read and written by the same pipe",
        ),
        (
            ["pipe", "a", "--to", "b", "--checkpoint", "c", "--sql", "SELECT 1 FROM messages", "--conf", "x"],
            "is not NAME=VALUE",
        ),
        (["pipe", "a", "--to", "b", "--checkpoint", "c", "--sql", "SELECT (1 FROM messages"], "is never closed"),
        (["pipe", "a", "--route", "--create", *PIPED], "create needs the name of the target queue"),
        (["pipe", "--pattern", "b.*", "--to", "b", *PIPED], "the pattern matches it"),
        (["replay", "x", "a", "--into", "a/b"], "cannot be the name of a queue"),
        (["archive", "a"], "--to"),
        (["archive", "a", "--pattern", "b", "--to", "x"], "name queues, or give --pattern"),
        (["archive", "--pattern", "(", "--to", "x"], "not a regular expression"),
        (["archive", "a", "--to", "x", "--bucket", "90d"], "from 1 s to 31 d"),
        (["replay", "x", "--from", "soon"], "not a position in time"),
        (["replay", "x", "--from", "-1h", "--to", "-2h"], "has to be after its start"),
        (["replay", "x", "--ttl", "1h", "--keep-expiry"], "messages keep their expiry"),
        (["replay", "x", "--run", ""], "the name of a run"),
        (["stats", "--group", "g"], "needs --lag"),
        (["audit"], "Missing argument"),
        (["audit", "r", "--as", "x"], "OLD=NEW"),
        (["audit", "r", "--only-archive"], "needs the archive"),
    ],
)
def test_mistakes_cost_no_start(run: Run, starts: list[Any], arguments: list[str], said: str) -> None:
    """What can be seen to be wrong is said before Spark is started, with exit code 2."""
    ended = run("pipeline", *arguments)
    assert (ended.code, ended.out) == (2, b""), ended.err
    assert said in " ".join(ended.err.replace("│", " ").split())
    assert starts == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["archive", "a", "--to", "x"],
        ["pipe", "a", "--to", "b", "--checkpoint", "c", "--sql", "SELECT 1 FROM messages"],
        ["stats", "a"],
        ["stats", "--lag", "a"],
    ],
)
def test_unknown_queues_cost_no_start(run: Run, starts: list[Any], arguments: list[str]) -> None:
    """A missing queue is reported before Spark is started."""
    ended = run("pipeline", *arguments)
    assert (ended.code, ended.out, starts) == (1, b"", [])
    assert "has no queue 'a'" in ended.err


def test_how_spark_is_started(run: Run, starts: list[Any]) -> None:
    """By the master and the settings that are given."""
    arguments = ["--queue", "a", "--master", "spark://one:7077", "--conf", "spark.cores.max=2", "--conf", "a=b=c"]
    with pytest.raises(FirstStepReached):
        run("pipeline", "deadletter", "classes", *arguments)
    assert starts == [{"master": "spark://one:7077", "conf": {"spark.cores.max": "2", "a": "b=c"}}]


def test_a_store_that_is_not_there(run: Run, starts: list[Any], tmp_path: Path) -> None:
    """A mistyped directory is reported as missing, and not created."""
    ended = run("pipeline", "deadletter", "classes", "--queue", "a", "--data", str(tmp_path / "typo"))
    assert (ended.code, starts, (tmp_path / "typo").exists()) == (1, [], False)
    assert "there is no store at" in ended.err


COMMAND = ["pipeline", "deadletter", "classes", "--queue", "a"]


def test_whose_queues(run: Run, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by --app, else by the environment, else by the profile; else it is the only one of the store."""
    with closing(open_store(tmp_path)) as store:
        bridge.run(store.applications.create_application("zoo"))
    arguments = job(deadletter_job.classify_dead_letters, DeadLetterClasses(0, ()))
    write_profile(Profile(url="http://127.0.0.1:5000", application="zoo", key="k"), tmp_path / "profile.toml")
    assert run(*COMMAND).code == 0
    monkeypatch.setenv("QUEUEY_APP", "acme")
    assert run(*COMMAND).code == 0
    assert run(*COMMAND, "--app", "zoo").code == 0
    assert [options.application for options in arguments if hasattr(options, "application")] == ["zoo", "acme", "zoo"]


def test_whose_queues_is_asked_first(run: Run, starts: list[Any], tmp_path: Path) -> None:
    """A missing application, or several and none named, is reported before Spark is started."""
    nobody = run(*COMMAND, "--app", "nobody")
    assert (nobody.code, nobody.err) == (2, "queuey: There is no application 'nobody' in the store. It has 1: acme.\n")
    with closing(open_store(tmp_path)) as store:
        bridge.run(store.applications.create_application("zoo"))
    several = run(*COMMAND)
    assert several.code == 2
    assert "needed unless the store has exactly one. It has 2: acme, zoo." in several.err
    assert starts == []


def test_where_the_store_is(run: Run, job: Job, tmp_path: Path) -> None:
    """Tasks get every setting, from any source, by name: no secret, no relative path, nothing else."""
    (tmp_path / "queuey.toml").write_text("default_ttl = 60\nport = 1\ndeadline = 20.5\n")
    arguments = job(deadletter_job.classify_dead_letters, DeadLetterClasses(0, ()))
    options = ["--config", str(tmp_path / "queuey.toml"), "--app", "acme"]
    assert run("pipeline", "deadletter", "classes", "--queue", "a", *options).code == 0
    store = arguments[0]
    assert dict(store.settings) == {"data": str(tmp_path), "default_ttl": "60", "deadline": "20.5"}
    assert (store.config, store.application) == (None, "acme")


def test_tables_reach_the_tasks() -> None:
    """A consistency level, which is a table, makes the same settings again in tasks."""
    options = {"store": "cassandra://host/space", "consistency.weak": "write=ALL,delay=8.5"}
    loaded = settings.load(options, {})
    assert settings.load(ConfiguredStore(loaded).given_settings(), {}).settings == loaded.settings


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (
            "Traceback (most recent call last):\n  File\nqueuey.spark.errors.OptionError: no such\n\n\tat x",
            2,
            "no such",
        ),
        ("Job aborted\nTraceback (most recent call last):\nValueError: seven\n\tat x", 1, "ValueError: seven"),
    ],
)
def test_errors_are_one_line(run: Run, text: str, code: int, said: str) -> None:
    """An error of Spark is one line, with exit code 2 for a wrong request and 1 for a failure."""
    error = type("PythonException", (Exception,), {"__module__": "pyspark.errors.exceptions"})(text)

    def fail(*_: object, **__: object) -> None:
        raise error

    with replace(session, lambda **_: Session()), replace(deadletter_job.classify_dead_letters, fail):
        ended = run("pipeline", "deadletter", "classes", "--queue", "a", "--json")
    assert (ended.code, ended.out, ended.err) == (
        code,
        b"",
        f'{{"type":"Failed","title":"{said}","exit_code":{code}}}\n',
    )


def test_classes(run: Run, job: Job) -> None:
    """A table and the samples below it, unable to steer a terminal; with --json the report as one document."""
    passed = job(deadletter_job.classify_dead_letters, DeadLetterClasses(2, (CLASS,)))
    arguments = ["pipeline", "deadletter", "classes", "--queue", "orders", "--partition", "2", "--error", "Late"]
    ended = run(*arguments)
    assert ended.code == 0
    lines = ended.text.splitlines()
    assert lines[1].split()[:3] == ["2", "or\\x1bders", "acme.Late"]
    assert lines[2].endswith(f"1:{'a' * 32}  acme.Late: order 7 is late")
    assert lines[3] == "2 dead letters in 1 class"
    selection = passed[1]
    assert (selection.queues, selection.partitions, selection.error) == (("orders",), (2,), "Late")
    assert run(*arguments, "--json").json["classes"][0]["count"] == 2


def test_redrive(run: Run, job: Job) -> None:
    """The report counts what went where and what stays, which is a failure."""
    stays = UnsentDeadLetter("orders.dead", 3, "b" * 32, "queue orders has only 2 partitions")
    outcome = Redriven(sent={"orders": 5}, already_sent=1, left={stays.reason: 1}, samples=(stays,))
    passed = job(deadletter_job.redrive, outcome)
    arguments = ["pipeline", "deadletter", "redrive", "--queue", "orders", "--ttl", "1h"]
    ended = run(*arguments)
    assert ended.code == 1
    assert ended.text.splitlines() == [
        "orders: 5 dead letters sent back",
        "1 had been sent back before, and were removed now",
        f"1 stay: {stays.reason}",
    ]
    assert passed[1].queues == ("orders",)
    tried = run(*arguments, "--dry-run", "--json")
    assert (tried.json["dry_run"], tried.json["sent"]) == (True, {"orders": 5})


def test_pipe(run: Run, job: Job, tmp_path: Path) -> None:
    """Options become one description of the pipe; a dry run shows columns and rows instead of moving anything."""
    (tmp_path / "all.sql").write_text("SELECT * FROM messages")
    make_queues(tmp_path, "a", "b", "c")
    passed = job(pipe.run, Piped("q-1", 3, 40, 7))
    arguments = ["pipeline", "pipe", "a", "b", "--to", "c", "--sql", f"@{tmp_path / 'all.sql'}", "--from", "1795000000"]
    ended = run(*arguments, "--checkpoint", str(tmp_path / "c"), "--watermark", "10m", "--every", "5s", "--update")
    assert (ended.code, ended.text) == (0, "40 messages were read in 3 micro-batches, and 7 written (query q-1)\n")
    piped = passed[0]
    assert (piped.source.names, piped.target, piped.sql) == (("a", "b"), "c", "SELECT * FROM messages")
    assert (piped.start, piped.watermark, piped.every, piped.mode) == (1_795_000_000.0, "600 seconds", 5.0, "update")
    job(pipe.preview, Preview({"value": "binary"}, sorted=True, rows=({"value": "\x1bbody"},)))
    shown = run(*arguments, "--dry-run").text.splitlines()
    assert shown == [
        "column  type",
        "value   binary",
        "The query shuffles rows, so each task sorts its rows before it writes them.",
        "value",
        "\\x1bbody",
    ]


@pytest.mark.parametrize(
    ("messages", "start", "said"),
    [
        (40, "earliest", "the transform returned no rows"),
        (0, "latest", "--from earliest"),
        (0, "earliest", "There were no messages."),
    ],
)
def test_a_pipe_that_writes_nothing(run: Run, job: Job, tmp_path: Path, messages: int, start: str, said: str) -> None:
    """A pipe that writes nothing reports that, with the reason."""
    make_queues(tmp_path, "a", "c")
    job(pipe.run, Piped("q-1", 1, messages, 0))
    ended = run("pipeline", "pipe", "a", "--to", "c", *PIPED, "--from", start)
    assert ended.code == 0
    assert said in ended.err


def test_a_pipe_is_told_to_stop_by_signals() -> None:
    """The first signal asks for an end, a second one interrupts, and afterwards signals are as they were before."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_by_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
