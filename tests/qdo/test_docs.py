"""The pages about Qdo, run as a reader would run them: from top to bottom."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT, Reader, blocks
from tests.served import Served

TUTORIAL = "docs/qdo-tutorial.md"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Somebody beside a running service, whose workers meet in a directory of the test's own."""
    state = str(tmp_path / "state")
    with Served(tmp_path) as served:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
        monkeypatch.setenv("XDG_STATE_HOME", state)
        yield Reader(served, tmp_path, XDG_STATE_HOME=state)


@pytest.fixture
def no_worker_left(tmp_path: Path) -> Iterator[None]:
    """Ends the workers that are left when the page did not come to its end."""
    yield
    for path in tmp_path.glob("worker-*.pid"):
        pid = int(path.read_text())
        with contextlib.suppress(OSError):
            if "processors.toml" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("no_worker_left")
def test_tutorial(reader: Reader) -> None:
    """Every command and program of the tutorial does what the text says, in order."""
    serve, *rest = blocks(TUTORIAL)
    assert serve.text == "queuey serve\n"
    assert {block.language for block in rest} == {"python", "sh"}
    printed = [reader.run(TUTORIAL, block) for block in rest]
    assert "2 members own 4 of 4 partitions, 0 messages behind" in "".join(printed)
    assert "ValueError" in "".join(printed)


@pytest.mark.parametrize("page", ["docs/qdo.md", "docs/qdo-migration.md"])
def test_programs(reader: Reader, page: str) -> None:
    """Every program of a page runs, and its claims about itself hold."""
    programs = [block for block in blocks(page) if block.language == "python"]
    assert programs
    for block in programs:
        reader.run(page, block)


def test_every_page_is_run() -> None:
    """No page about Qdo shows a program that no test runs."""
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("qdo*.md")}
    assert {name for name, text in pages.items() if "```python" in text} == {
        "qdo.md",
        "qdo-migration.md",
        "qdo-tutorial.md",
    }
    assert not any(re.search(r"(?m)^ +```python", text) for text in pages.values())
