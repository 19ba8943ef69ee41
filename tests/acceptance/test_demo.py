"""``make demo`` ends by itself, reports success, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from tests.servers.processes import ending
from tests.servers.served import environment

DEMO = Path(__file__).parents[2] / "deploy" / "demo"
LOSE = "parts.PARTS.insert(3, ('Lose', lambda stage: stage.client.purge_queue(parts.WORK) or parts.Account('Lost')))"
"""A further part that loses messages."""


def demo(directory: Path, *command: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return ending(
        subprocess.Popen(
            [sys.executable, *(command or (str(DEMO / "run.py"),))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(TMPDIR=str(directory), PYTHONPATH=str(DEMO)),
        )
    )


def is_cleaned_up(directory: Path) -> bool:
    named = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(directory) in _read(path)]
    return not named and not list(directory.iterdir())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def make_run_args(change: str) -> tuple[str, str]:
    return "-c", f"import sys, parts, run\n{change}\nsys.exit(run.main())"


@pytest.mark.slow
def test_demo_shows_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with 0, accounts for every part with figures, also for Spark, and cleans up but for a chart."""
    chart = tmp_path / "kept" / "chart.svg"
    monkeypatch.setenv("DEMO_CHART", str(chart))
    directory = tmp_path / "temporary"
    directory.mkdir()
    with demo(directory) as process:
        out, err = process.communicate(timeout=1200)
    assert (process.returncode, err) == (0, ""), out
    check_parts_reported(out)
    assert "1,707 of 1,707 are there, each once and as it was sent" in out
    assert fromstring(chart.read_text()).tag.endswith("svg")
    assert is_cleaned_up(directory)


def check_parts_reported(out: str) -> None:
    for words in ("1,707 notices", "quakes-ak", "newest first", "Three windows", "Deleted", "integrity check"):
        assert words in out
    assert "acknowledged before the kill" in out
    assert "3 workers shared the 4 partitions" in out
    assert "killed with -9" in out
    assert "Each of the 200 jobs was done and acknowledged" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [("parts.FEED = parts.FEED.with_name('missing')", "missing"), (LOSE, "did not come back")],
    ids=["no feed", "lost"],
)
def test_demo_fails_aloud(tmp_path: Path, change: str, words: str) -> None:
    """When a message is lost it ends with another code than 0, says what is lost, and still cleans up."""
    with demo(tmp_path, *make_run_args(change)) as process:
        out, err = process.communicate(timeout=500)
    assert process.returncode == 1, out
    assert words in err
    assert is_cleaned_up(tmp_path)


def test_demo_can_be_interrupted(tmp_path: Path) -> None:
    """Ctrl-C in the middle leaves nothing running either."""
    with demo(tmp_path) as process:
        assert process.stdout is not None
        while "1. Start" not in (line := process.stdout.readline()):
            assert line, "it ended before its first part"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=500)
    assert process.returncode == 130
    assert is_cleaned_up(tmp_path)
