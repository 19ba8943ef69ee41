"""The pages about Qdo, run from top to bottom, as a reader would run them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuey.client import Client
from tests.pages import ROOT, Block, Reader, runnable_blocks
from tests.servers.served import Served

TASKS = "docs/tasks.md"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader beside a running service, whose workers use a directory of the test."""
    state = str(tmp_path / "state")
    with Served(tmp_path) as served:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
        monkeypatch.setenv("XDG_STATE_HOME", state)
        monkeypatch.setenv("QDO_SESSION_TIMEOUT", "20")  # a machine that pauses for 3 s must not end a session
        yield Reader(served, tmp_path, XDG_STATE_HOME=state, PYTHONUNBUFFERED="1")


@pytest.fixture
def no_worker_left(tmp_path: Path) -> Iterator[None]:
    """Ends the workers that are left if the page did not run to its end."""
    yield
    for path in tmp_path.glob("worker-*.pid"):
        pid = int(path.read_text())
        with contextlib.suppress(OSError):
            if "qdo" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("no_worker_left")
@pytest.mark.parametrize(
    ("page", "section", "shown"),
    [
        ("docs/qdo-tutorial.md", "", ("2 members own 4 of 4 partitions, 0 messages behind", "ValueError")),
        (TASKS, "Tutorial: thumbnails", ("3 waiting (0 failed before)", "FileNotFoundError")),
    ],
)
def test_tutorial(reader: Reader, page: str, section: str, shown: tuple[str, ...]) -> None:
    """Every command and program of a tutorial does what the text says, in order."""
    printed = "".join(reader.run(page, block) for block in runnable_blocks(page, below=section))
    assert [text for text in shown if text not in printed] == []


@pytest.mark.usefixtures("reader")
def test_cards_of_the_landing_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Each card of docs/index.md does what it says: an inbox is emptied, a job runs, a log is read repeatedly."""
    inbox, jobs, log = runnable_blocks("docs/index.md")
    with Client() as client:
        names: dict[str, Any] = {"client": client}
        for block in (inbox, jobs, log):
            exec(block.text, names)
        assert (client.read("ann").messages, names["jobs"].run_all()) == ((), 1)
        assert [message.body for message in client.read_all("log")] == ["order 7 is paid"]
        names["jobs"].client.close()
    inbox_line, log_line, job_line = capsys.readouterr().out.splitlines()
    assert (inbox_line, log_line[-15:], job_line) == ("Your parcel came", "order 7 is paid", "beach.jpg")


@pytest.mark.usefixtures("reader")
def test_programs_about_tasks() -> None:
    """The definitions on the pages about tasks are valid, and the statements about unique calls and schedules hold."""
    with Client() as client:
        client.create_queue("orders")
        sections = [(TASKS, name) for name in ("Define", "Unique", "At certain times", "Progress")]
        for page, section in (*sections, ("docs/moving-from-celery.md", "Side by side")):
            for block in runnable_blocks(page, below=section):
                if block.language == "python":
                    exec(block.text, {"__name__": "shown"})
        assert {"task:orders:poll", "task:orders:tidy_up"} <= {one.name for one in client.schedules.list()}


@pytest.mark.parametrize("page", ["docs/qdo.md", "docs/moving-from-kafka.md"])
def test_programs(reader: Reader, page: str) -> None:
    """Every program of a page runs, and its claims about itself hold."""
    programs = [block for block in runnable_blocks(page) if block.language == "python"]
    assert programs
    for block in programs:
        reader.run(page, block)


def test_workers_of_the_readme(reader: Reader, tmp_path: Path) -> None:
    """The handler of the README is called with every notice of its feed, and the group can be inspected."""
    block, watch = (block for block in runnable_blocks("README.md") if ".venv/bin/qdo" in block.text)
    write, work = block.text.replace(".venv/bin/", "").splitlines()
    status = watch.text.replace(".venv/bin/", "")
    feed = ROOT / "deploy/demo/earthquakes.jsonl"
    for line in (
        "queuey queue create quakes --partitions 4",
        f"queuey send quakes --from {feed} --key-field net",
        write,
    ):
        reader.run("README.md", Block("sh", line, block.line))
    wait = 'until [ "$(wc -l < printed)" -ge 1707 ]; do kill -0 $!; sleep 0.1; done'
    script = f"{work} > printed &\n{wait}\nkill $!\nwait $!\ncat printed\n"
    printed = reader.run("README.md", Block("sh", script, block.line))
    assert len(printed.splitlines()) == 1707
    assert "Amboy, Washington" in printed
    assert "of 4 partitions" in reader.run("README.md", Block("sh", status, watch.line))
