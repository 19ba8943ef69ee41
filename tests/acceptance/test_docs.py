"""The commands and programs of the documentation, run as a reader would run them: from top to bottom."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from queuey.storage.sqlite import check
from tests.pages import Block, Reader, blocks
from tests.served import Served


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
