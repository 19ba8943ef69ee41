"""The commands on pages, typed one after another beside a service: each ends as the page says."""

from __future__ import annotations

import gzip
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import qdo.__main__
import queuey.__main__
from tests.commands import Ended, make_runner
from tests.pages import Block, Reader, runnable_blocks
from tests.servers.served import Served, free_port

pytestmark = pytest.mark.slow

ENDLESS = re.compile(r"queuey tail |queuey claim .* -- |qdo work |qdo status .*--watch")
"""Commands that run until Ctrl-C, which is sent after some seconds here."""
ENDLESS_RUN_SECONDS = 8
FOR_A_SHELL = re.compile(r"[|<>&;$]")
ORDERS = ("queuey queue create orders --partitions 4", "queuey send orders 1 2 3")
REPORTS = (
    "queuey queue create reports --partitions 4",
    "queuey queue create crash-1",
    "queuey send reports 1 2 3",
    "qdo offsets reset earliest --group archive --queue reports",
)
TYPED_BEFORE = {
    ("docs/access.md", "queuey app key-add shop"): ("queuey app create shop",),
    ("docs/compat/sqs.md", "queuey app key-add"): ("queuey app create shop",),
    ("docs/cli.md", "queuey queue move"): (*ORDERS, "queuey queue create orders-2025"),
    ("docs/cli.md", "queuey send orders"): tuple(
        f"queuey queue create {name}" for name in ("pictures", "log", "tasks")
    ),
    ("docs/cli.md", "queuey claim"): ("queuey queue create thumbnails", "queuey send thumbnails --from feed.jsonl"),
    ("docs/cli.md", "queuey app create"): ("queuey app create old-shop",),
    ("docs/moves.md", "queuey queue move"): (*ORDERS, "queuey queue create orders-2025"),
    ("docs/qdo-cli.md", "qdo work"): REPORTS,
}
"""What is typed before a block of a page, by the beginning of the block."""
MODULE = """
from contextlib import contextmanager

def handle(message, context):
    print(message.body)

@contextmanager
def results():
    yield []

def archive(message, results):
    results.append(message.body)
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the pages name."""
    feed = "".join(f'{{"customer":"c{number % 3}","net":"n{number % 2}"}}\n' for number in range(60))
    (tmp_path / "feed.jsonl").write_text(feed)
    (tmp_path / "feed.jsonl.gz").write_bytes(gzip.compress(feed.encode()))
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    (tmp_path / "access.log").write_text("one line\nanother one\n")
    (tmp_path / "key.txt").write_text("k" * 40 + "\n")
    (tmp_path / "reports.py").write_text(MODULE)
    for name, text in {
        "make-thumbnail": "cat > /dev/null",
        "jq": r"""sed 's/.*"receipt" *: *"\([^"]*\)".*/\1/'""",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Typist:
    """A user in that directory who types commands.

    Plain commands run in this process, because most of a command's time is its start; others run in a shell.

    Args:
        reader: Runs programs and what needs a shell.
        run: Runs a plain command, by the program's name.
    """

    def __init__(self, reader: Reader, run: dict[str, Callable[..., Ended]]) -> None:
        self._reader = reader
        self._run = run

    def type(self, page: str, line: str, number: int) -> Ended | None:
        """Types a line, with existing ids and a free port; fails unless it ends well.

        An endless command is interrupted; a command that a leaving member hinders is repeated for a minute.
        """
        for shown, real in self._id_getters().items():
            line = line.replace(shown, real()) if shown in line else line
        line = line.replace("127.0.0.1:9400", f"127.0.0.1:{free_port()}").replace("jq -r", "./jq -r")
        if ENDLESS.match(line):
            line = f"timeout -k 60 -s INT {ENDLESS_RUN_SECONDS} {line} || test $? -eq 124"
        words = shlex.split(line, comments=True)
        if words[0] in self._run and FOR_A_SHELL.search(line) is None:
            ended = self._run[words[0]](*words[1:])
            given_up = time.monotonic() + 60
            while "stop its members first" in ended.err and time.monotonic() < given_up:
                # A worker that was stopped while joining stays a member until its session ends.
                time.sleep(0.5)
                ended = self._run[words[0]](*words[1:])
            assert ended.code == 0, f"{page}:{number} {line}\n{ended.text}{ended.err}"
            return ended
        self._reader.run(page, Block("sh", line, number))
        return None

    def run_block(self, page: str, block: Block) -> None:
        """Runs a block in Python, or types its lines except installations."""
        if block.language == "python":
            self._reader.run(page, block)
            return
        for offset, line in enumerate(block.text.splitlines()):
            if not line.startswith("pip install"):
                self.type(page, line, block.line + offset)

    def _id_getters(self) -> dict[str, Callable[[], str]]:
        return {
            "01f1e5fcaf55cfbe": lambda: self._read_field("move", "queue", "moves"),
            "1-0123456789ab11e88000000000000001-1-9c08f02cb6dbcc-d5be0d": lambda: self._read_field(
                "receipt", "claim", "thumbnails", "--limit", "1"
            ),
            "reports 1f0c9a3e": lambda: f"reports {self._read_field('key', 'app', 'keys', 'reports')}",
            "queuey 1f0c9a3e": lambda: f"queuey {self._read_field('key', 'app', 'keys', 'queuey')}",
            "orders 39d94ce9e4a711f1ae954333c99db4f5": lambda: (
                f"orders {self._read_field('message_id', 'read', 'orders')}"
            ),
            "2:39d94ce9e4a711f1ae954333c99db4f5": lambda: ":".join(
                self._read_field(field, "read", "orders") for field in ("partition", "message_id")
            ),
            "4f2b1c80fd9211f0a6cf0242ac120002": lambda: self._read_field(
                "message_id", "read", "reports", "--limit", "1"
            ),
        }

    def _read_field(self, field: str, *words: str) -> str:
        first = self._run["queuey"](*words, "--json").json_lines[0]
        return str((first[0] if isinstance(first, list) else first)[field])


@pytest.fixture
def typist(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    """A user in that directory, beside a service whose workers meet in a directory of the test's own."""
    variables = {"XDG_STATE_HOME": str(desk / "state"), "QDO_SESSION_TIMEOUT": "20", "PYTHONUNBUFFERED": "1"}
    with Served(desk) as served, served.client() as client:
        places = {"QUEUEY_PROFILE": str(served.profile_path), "QUEUEY_DATA": str(served.data)}
        for name, value in {**places, **variables}.items():
            monkeypatch.setenv(name, value)
        programs = {"queuey": queuey.__main__.main, "qdo": qdo.__main__.main}
        run = {name: make_runner(name, main, monkeypatch) for name, main in programs.items()}
        yield Typist(Reader(served, desk, {"client": client}, **variables), run)


@pytest.mark.parametrize(
    "page",
    [
        *("docs/access.md", "docs/cli.md", "docs/compat/emodb.md", "docs/compat/sqs.md", "docs/moves.md"),
        *("docs/operations.md#Keys", "docs/qdo-cli.md", "docs/schedules.md"),
    ],
)
def test_commands(typist: Typist, page: str) -> None:
    """Every command and program of the page ends well, in order; those that follow something are stopped."""
    page, _, section = page.partition("#")
    page_blocks = runnable_blocks(page, below=section)
    typed_before = {start: lines for (name, start), lines in TYPED_BEFORE.items() if name == page}
    assert [start for start in typed_before if not any(block.text.startswith(start) for block in page_blocks)] == []
    for block in page_blocks:
        for start, lines in typed_before.items():
            if block.text.startswith(start):
                for line in lines:
                    typist.type(page, line, block.line)
        typist.run_block(page, block)
