"""What ``queuey pipeline stats`` and ``audit_job`` print and how they end, with jobs that need no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from queuey.cli import main
from queuey.ids import FIRST
from queuey.messages import QueueSpec
from queuey.spark.jobs.audit import audit_job
from queuey.spark.jobs.audit.audit_job import Account, Audit, AuditSample, Passed
from queuey.spark.jobs.stats import lag, stats_job
from queuey.spark.jobs.stats.lag import Behind, LagReport
from queuey.spark.jobs.stats.stats_job import Stats
from queuey.spark.jobs.stats.totals import QueueFigures, RecentCounts, Totals
from queuey.spark.jobs.stats.ttl_forecast import Forecast
from queuey.spark.session import session
from queuey.storage import sqlite
from tests.commands import Run, runner
from tests.replacing import replace

Job = Callable[..., list[Any]]

DEEP = QueueFigures(
    queue="de\x1bep", partitions=4, messages=1200, bytes=5000, largest=600, exact=False, oldest=1e9, newest=1e9 + 600
)
TALLY = Totals(queues=3, empty=2, partitions=1, messages=1200, bytes=5000, exact=False, oldest=1e9, newest=1e9 + 600)


class Session:
    """Stands where a session of Spark would."""

    def stop(self) -> None:
        """Does nothing."""


@pytest.fixture
def sessions() -> list[Session]:
    """The sessions that were started."""
    return []


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: list[Session]) -> Iterator[Run]:
    """Runs a command on a store with one queue, without Spark."""
    store = sqlite.open_store(tmp_path / "data")
    store.create_application("acme")
    store.create_queue("acme", "q", QueueSpec())
    store.close()
    monkeypatch.setenv("QUEUEY_DATA", str(tmp_path / "data"))

    def start(**_: object) -> Session:
        sessions.append(Session())
        return sessions[-1]

    with replace(session, start):
        yield runner("queuey", main, monkeypatch)


@pytest.fixture
def job() -> Iterator[Job]:
    """Replaces a job by one that gives one report after the other; returns where the options of its runs go."""
    with ExitStack() as replaced:

        def reporting(job: Callable[..., object], *reports: object) -> list[Any]:
            given: list[Any] = []

            def run(_spark: object, options: object, _say: object) -> object:
                given.append(options)
                return reports[min(len(given), len(reports)) - 1]

            replaced.enter_context(replace(job, run))
            return given

        yield reporting


def test_stats_as_tables_and_as_a_document(run: Run, job: Job) -> None:
    """Sums and lists are printed; estimates say so; names cannot steer the terminal; JSON has all figures."""
    report = Stats(
        tally=msgspec.structs.replace(TALLY, top={"skew": (DEEP,)}),
        recent={DEEP.queue: RecentCounts(5, 7, more=True)},
        at=2e9,
    )
    given = job(stats_job.run, report)
    ended = run("pipeline", "stats", "--pattern", "d.*", "--top", "3")
    assert (ended.code, ended.err) == (0, "")
    assert "3 (2 of them empty)" in ended.text
    assert "about 1,200" in ended.text
    assert "The most uneven:" in ended.text
    assert "The deepest:" not in ended.text
    [row] = [line.split() for line in ended.text.splitlines() if line.startswith("de\\x1bep")]
    assert row == [
        "de\\x1bep",
        "4",
        "about",
        "1,200",
        "about",
        "5,000",
        "2.00",
        "2.00",
        "5",
        "or",
        "more",
        "7",
        "or",
        "more",
    ]
    assert (given[0].selection.regex, given[0].top) == ("d.*", 3)
    [listed] = run("pipeline", "stats", "--json").json["top"]["skew"]
    assert (listed["skew"], listed["recent"]) == (2.0, {"minute": 5, "hour": 7, "more": True})


def test_lag_shows_what_goes_first(run: Run, job: Job, tmp_path: Path) -> None:
    """The lag is printed with its forecast; offsets of a file are read before Spark starts."""
    row = Behind(
        queue="q",
        partition=2,
        group="g",
        offset=None,
        messages=50,
        exact=True,
        seconds=200.0,
        arriving=None,
        reading=1.5,
        forecast=Forecast(30.0, 12),
    )
    report = LagReport(
        partitions=9,
        behind=2,
        messages=60,
        exact=True,
        lost=12,
        first=30.0,
        rows=(row,),
        within=3600,
        sample=10,
        at=2e9,
    )
    given = job(lag.run, report)
    offsets = tmp_path / "offsets"
    offsets.write_text('{"app":"acme","host":"h","queue":"q","partition":2,"offset":null}\n')
    ended = run("pipeline", "stats", "--lag", "q", "--group", "g", "--offsets", str(offsets), "--within", "2h")
    assert ended.code == 0
    assert "12, the first in 30 s" in ended.text
    assert ended.text.splitlines()[-1].split() == ["q", "2", "g", "50", "3", "min", "1.50", "12", "30", "s"]
    assert "Groups with a lag that are not shown: 1;" in ended.err
    assert (given[0].groups, given[0].within, given[0].offsets) == (("g",), 7200.0, {"q": {2: FIRST}})
    assert run("pipeline", "stats", "--lag", "--json").json["rows"][0]["forecast"]["lost"] == 12


def audited(total: Account, samples: tuple[AuditSample, ...] = ()) -> Audit:
    """A report of one partition."""
    return Audit(
        sound=total.sound,
        total=total,
        partitions={"q": {1: total}},
        lines=10,
        broken=1,
        foreign=2,
        doubtful=3,
        answered=1,
        strays=5,
        samples=samples,
        at=2e9,
    )


def test_an_audit_ends_by_what_it_found(run: Run, job: Job) -> None:
    """All is well: 0. Something missing, duplicated or different: 1, after the whole report, as text and as JSON."""
    well = audited(Account(accepted=1707, present=1707, late=3, groups={"g": Passed(1700, 7, 0)}))
    sample = AuditSample(kind="missing", queue="q", partition=1, id="0f", at=1e9, sha256="ab")
    wrong = audited(Account(accepted=9, present=6, missing=2, expired=1, copies=1), (sample,))
    given = job(audit_job.run, well, wrong)
    ended = run("pipeline", "audit", "r", "--group", "g", "--as", "q=p", "--late", "9s", "--equal-bodies")
    assert (ended.code, ended.text.splitlines()[-1]) == (0, "1,707 of 1,707 messages are there: all is well.")
    assert "Sends that were never answered: 3, of which stored: 1." in ended.text
    assert "Other messages without a receipt: 4." in ended.text
    assert "Lines that are no receipts: 1." in ended.err
    options = given[0]
    assert (options.receipts, options.names, options.late, options.copies) == (("r",), {"q": "p"}, 9.0, False)
    ended = run("pipeline", "audit", "r")
    assert ended.code == 1
    assert ended.text.splitlines()[-1] == "6 of 9 messages are there, 1 expired: 2 missing, 1 duplicated."
    assert "2001-09-09T01:46:40" in ended.text
    ended = run("pipeline", "audit", "r", "--json")
    assert (ended.code, ended.json["sound"], ended.json["total"]["missing"]) == (1, False, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stats", "q", "--pattern", "x"], "names or --pattern"),
        (["stats", "--group", "g"], "for --lag"),
        (["stats", "--lag", "--within", "soon"], "no length of time"),
        (["stats", "--lag", "--offsets", "absent"], "cannot be read"),
        (["audit"], "Missing argument"),
        (["audit", "r", "--as", "x"], "OLD=NEW"),
        (["audit", "r", "--offsets", "x="], "GROUP=FILE"),
        (["audit", "r", "--only-archive"], "needs the archive"),
        (["audit", "r", "--late", "0"], "is not between"),
    ],
)
def test_wrong_usage(run: Run, sessions: list[Session], arguments: list[str], said: str) -> None:
    """What cannot be done is said before Spark is started, with exit code 2."""
    ended = run("pipeline", *arguments)
    assert ended.code == 2, ended.err
    assert said in " ".join(ended.err.replace("│", " ").split())
    assert sessions == []
