"""The commands and programs of the documentation, run as a reader would run them: from top to bottom."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from queuey.storage.sqlite import check
from tests.served import Served, environment

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent


class Block(NamedTuple):
    """One fenced block of a page: its language, its text, and the line it begins at."""

    language: str
    text: str
    line: int


def blocks(page: str, *, below: str = "") -> list[Block]:
    """The fenced blocks of a page, or of one of its sections."""
    text = (ROOT / page).read_text()
    start = text.index(f"\n## {below}\n") if below else 0
    end = text.find("\n## ", start + 1) if below else len(text)
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text[start : end if end > 0 else len(text)], re.DOTALL | re.MULTILINE)
    return [Block(match[1], match[2], text[: start + match.start()].count("\n") + 2) for match in found]


class Reader:
    """Somebody who types what a page says, beside a service that runs already.

    Args:
        served: The service.
        directory: Where they work.
        variables: What they have set beside the profile and the data directory.
    """

    def __init__(self, served: Served, directory: Path, **variables: str) -> None:
        self._directory = directory
        self._names: dict[str, object] = {}
        self._environment = environment(
            PATH=f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            QUEUEY_PROFILE=str(served.profile_path),
            QUEUEY_DATA=str(served.data),
            **variables,
        )

    def run(self, page: str, block: Block) -> str:
        """Runs a block; returns what a command printed."""
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), self._names)
            return ""
        ended = subprocess.run(
            ["/bin/sh", "-eu", "-c", block.text],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, f"{page}:{block.line}\n{block.text}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and program of the tutorial does what the text says, in order."""
    page = "docs/tutorial.md"
    with Served(tmp_path) as served:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
        reader = Reader(served, tmp_path)
        serve, *rest = blocks(page)
        assert serve.text == "queuey serve\n"
        assert {block.language for block in rest} == {"python", "sh"}
        for block in rest:
            reader.run(page, block)
        with served.client() as client:
            assert list(client.queue_names()) == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_of_the_readme(tmp_path: Path) -> None:
    """The README's calls by curl post a message and read it."""
    commands = "".join(block.text for block in blocks("README.md") if "curl" in block.text)
    with Served(tmp_path) as served:
        with served.client() as client:
            client.create_queue("quakes")
        address = f"http://127.0.0.1:{served.port}/"
        text = commands.replace("http://127.0.0.1:5000/", address)
        assert text.count(address) >= 2
        printed = Reader(served, tmp_path, KEY=served.profile.key).run("README.md", Block("sh", text, 1))
        assert '"body":"any body"' in printed


def test_backup_and_restore(tmp_path: Path) -> None:
    """The backup of the operations page is made beside a running service, is private and sound, and can be restored."""
    page = "docs/operations.md"
    make, restore = (block for block in blocks(page, below="Backup and restore") if block.language == "sh")
    backup = tmp_path / "backup.sqlite3"
    variables = {"PYTHON": sys.executable, "DATA": str(tmp_path / "data"), "BACKUP": str(backup)}
    with Served(tmp_path) as served:
        with served.client() as client:
            client.create_queue("kept")
            before = client.send_many("kept", [str(number) for number in range(2000)])
            printed = Reader(served, tmp_path, **variables).run(page, make)
            client.send("kept", "after the backup")
        assert printed == ""
        assert backup.stat().st_mode & 0o077 == 0
        assert served.end(signal.SIGTERM) == 0
        Reader(served, tmp_path, **variables).run(page, restore)
    assert check(tmp_path / "data") == []
    with Served(tmp_path, port=served.port) as again, again.client() as client:
        assert [message.id for message in client.read_all("kept", limit=1000)] == [receipt.id for receipt in before]
        assert client.send("kept", "after the restore").id not in {receipt.id for receipt in before}
