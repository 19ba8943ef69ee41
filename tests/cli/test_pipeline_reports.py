"""What ``queuey pipeline stats`` and ``audit_job`` print and how they end, with jobs that do not need Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec

from queuey.pipeline.audit import audit_job
from queuey.pipeline.audit.audit_job import Account, Audit, AuditSample, Passed
from queuey.pipeline.stats import lag, stats_job
from queuey.pipeline.stats.lag import Forecast, GroupPartitionLag, LagReport
from queuey.pipeline.stats.stats_job import Stats
from queuey.pipeline.stats.totals import QueueFigures, RecentCounts, Totals
from tests.cli.test_pipeline import Job, job, make_queues, run
from tests.commands import Run

__all__ = ["job", "run"]

DEEP = QueueFigures(
    queue="de\x1bep", partitions=4, messages=1200, bytes=5000, largest=600, exact=False, oldest=1e9, newest=1e9 + 600
)
TALLY = Totals(queues=3, empty=2, partitions=1, messages=1200, bytes=5000, exact=False, oldest=1e9, newest=1e9 + 600)


def test_stats_as_tables_and_as_a_document(run: Run, job: Job) -> None:
    """Sums and lists are printed; estimates are marked; names cannot steer the terminal; JSON has all figures."""
    report = Stats(
        tally=msgspec.structs.replace(TALLY, top={"skew": (DEEP,)}),
        recent={DEEP.queue: RecentCounts(5, 7, more=True)},
        at=2e9,
    )
    arguments = job(stats_job.run, report)
    ended = run("pipeline", "stats", "--pattern", "d.*", "--top", "3")
    assert (ended.code, ended.err) == (0, "")
    assert "3 (2 of them empty)" in ended.text
    assert "about 1,200" in ended.text
    assert "The most uneven:" in ended.text
    assert "The deepest:" not in ended.text
    [row] = [line.split() for line in ended.text.splitlines() if line.startswith("de\\x1bep")]
    assert " ".join(row) == "de\\x1bep 4 about 1,200 about 5,000 2.00 2.00 5 or more 7 or more"
    assert (arguments[0].selection.regex, arguments[0].top) == ("d.*", 3)
    [listed] = run("pipeline", "stats", "--json").json["top"]["skew"]
    assert (listed["skew"], listed["recent"]) == (2.0, {"minute": 5, "hour": 7, "more": True})


def test_lag_shows_what_goes_first(run: Run, job: Job, tmp_path: Path) -> None:
    """The lag is printed with its forecast."""
    row = GroupPartitionLag(
        queue="q",
        partition=2,
        group="g",
        offset=None,
        messages=50,
        exact=True,
        seconds=200.0,
        growth=0.5,
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
    arguments = job(lag.run, report)
    make_queues(tmp_path, "q")
    ended = run("pipeline", "stats", "--lag", "q", "--group", "g", "--within", "2h")
    assert ended.code == 0
    assert "12, the first in 30 s" in ended.text
    assert ended.text.splitlines()[-1].split() == ["q", "2", "g", "50", "3", "min", "0.50", "12", "30", "s"]
    assert "Lagging groups that are not shown: 1;" in ended.err
    assert (arguments[0].groups, arguments[0].within) == (("g",), 7200.0)
    assert run("pipeline", "stats", "--lag", "--json").json["rows"][0]["forecast"]["lost"] == 12


def make_audit(total: Account, samples: tuple[AuditSample, ...] = ()) -> Audit:
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
    well = make_audit(Account(accepted=1707, present=1707, late=3, groups={"g": Passed(1700, 7, 0)}))
    sample = AuditSample(kind="missing", queue="q", partition=1, id="0f", at=1e9, sha256="ab")
    wrong = make_audit(Account(accepted=9, present=6, missing=2, expired=1, copies=1), (sample,))
    arguments = job(audit_job.run, well, wrong)
    ended = run("pipeline", "audit", "r", "--group", "g", "--as", "q=p", "--late", "9s", "--equal-bodies")
    assert (ended.code, ended.text.splitlines()[-1]) == (0, "1,707 of 1,707 messages are present: all is well.")
    assert "Sends without an answer: 3, of which stored: 1." in ended.text
    assert "Other messages without a receipt: 4." in ended.text
    assert "Lines that are not receipts: 1." in ended.err
    options = arguments[0]
    assert (options.receipts, options.names, options.late, options.copies) == (("r",), {"q": "p"}, 9.0, False)
    ended = run("pipeline", "audit", "r")
    assert ended.code == 1
    assert ended.text.splitlines()[-1] == "6 of 9 messages are present, 1 expired: 2 missing, 1 duplicated."
    assert "2001-09-09T01:46:40" in ended.text
    ended = run("pipeline", "audit", "r", "--json")
    assert (ended.code, ended.json["sound"], ended.json["total"]["missing"]) == (1, False, 2)
