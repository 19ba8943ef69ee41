"""The commands and programs of the documentation, run as a reader would run them: from top to bottom."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from queuey.client.credentials.profile import Profile, write_profile
from queuey.storage.sqlite import check
from tests.access.users.issuer import Issuer, serving
from tests.app.alike import is_like, values_in
from tests.pages import Block, Reader, blocks, runnable_blocks
from tests.servers.processes import run_to_end
from tests.servers.served import Served, environment


def test_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and program of the tutorial does what the text says, in order."""
    page = "docs/tutorial.md"
    with Served(tmp_path) as served:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
        reader = Reader(served, tmp_path)
        for block in runnable_blocks(page):
            reader.run(page, block)
        with served.client() as client:
            assert list(client.queue_names()) == []


def test_tutorial_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Every command and program of the tutorial about queues of jobs does what the text says, in order."""
    page = "docs/claims.md"
    with Served(tmp_path) as served:
        monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
        reader = Reader(served, tmp_path)
        printed = "".join(reader.run(page, block) for block in runnable_blocks(page, below="Tutorial"))
        for words in ("1 message acknowledged.", "river.jpg", "meadow.jpg"):
            assert words in printed
        with served.client() as client:
            assert list(client.queue_names()) == []
            reader = Reader(served, tmp_path, {"client": client})
            pages = "docs/claims-loop.md docs/claims-kinds.md docs/claims-limits.md docs/claims-operations.md"
            for other in pages.split():
                for block in runnable_blocks(other):
                    reader.run(other, block)
            assert len(client.job_queue("reindex").receive(10)) == 1
    printed = capfd.readouterr().out
    assert "made a thumbnail of beach.jpg" in printed
    assert "made a thumbnail of forest.jpg" in printed
    assert "mountain.jpg is delivered for the second time: 2" in printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_tutorial_of_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and program of the tutorial about users does what the text says, with tokens of an issuer."""
    page = "docs/users.md"
    settings, *_ = (block for block in blocks(page) if block.language == "toml")
    issuer = Issuer()
    with serving(issuer.make_key_set()) as keys:
        text = settings.text.replace("https://accounts.example.org/keys", keys.url)
        assert keys.url in text
        settings._replace(text=text).save(tmp_path)
        with Served(tmp_path, ["--config", str(tmp_path / "queuey.toml")]) as served:
            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
            (tmp_path / "ann.token").write_text(issuer.token("ann", aud="queuey"))
            reader = Reader(served, tmp_path)
            printed = ""
            for block in runnable_blocks(page):
                adapted = block._replace(
                    text=block.text.replace("http://127.0.0.1:5000/", f"http://127.0.0.1:{served.port}/")
                )
                printed += reader.run(page, adapted)
            assert printed.count("Your parcel arrives today.") == 2
            assert '\nratelimit: "user";r=' in printed.lower()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_of_the_readme(tmp_path: Path) -> None:
    """The README's calls by curl post a message and read it."""
    commands = "".join(block.text for block in runnable_blocks("README.md") if "curl" in block.text)
    with Served(tmp_path) as served:
        with served.client() as client:
            client.create_queue("quakes")
        address = f"http://127.0.0.1:{served.port}/"
        text = commands.replace("http://127.0.0.1:5000/", address)
        assert text.count(address) >= 2
        printed = Reader(served, tmp_path, KEY=served.profile.key).run("README.md", Block("sh", text, 1))
        assert '"body":"any body"' in printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_groups_with_curl(tmp_path: Path) -> None:
    """A second terminal takes over from a stopped one, whose next commit is refused; answers are as shown."""
    page, end = "docs/groups.md", "----"
    examples = [block for block in blocks(page) if block.language in {"sh", "json"} and not block.mark]
    (tmp_path / ".curlrc").write_text("silent\nshow-error\n")
    with Served(tmp_path) as served:
        script = "".join(f"{block.text}echo; echo {end}\n" for block in examples if block.language == "sh")
        script = script.replace("http://127.0.0.1:5000", served.profile.url)
        printed = Reader(served, tmp_path, CURL_HOME=str(tmp_path)).run(page, Block("sh", script, 1)).split(end)
    number = -1
    for block in examples:
        if block.language == "sh":
            number += 1
            continue
        answer, shown = values_in(printed[number])[-1], json.loads(block.text)
        assert is_like(answer, shown), f"{page}:{block.line} {answer}"
        taken, expected = (each.get("take", {}).get("parcels", {}).get("1", {}) for each in (answer, shown))
        assert taken.get("from") == expected.get("from")


@pytest.mark.parametrize(
    ("variable", "directory", "profile"),
    [
        ("HOME", "", ".config/queuey/profile.toml"),
        ("XDG_CONFIG_HOME", "", "queuey/profile.toml"),
        ("QUEUEY_PROFILE", "mine.toml", "mine.toml"),
    ],
)
def test_key_of_the_readme(tmp_path: Path, variable: str, directory: str, profile: str) -> None:
    """The README's line finds the key wherever the service puts the profile."""
    line, *_ = (
        line for block in runnable_blocks("README.md") for line in block.text.splitlines() if line.startswith("KEY=")
    )
    path = tmp_path / profile
    path.parent.mkdir(parents=True, exist_ok=True)
    write_profile(Profile(url="http://127.0.0.1:5000/v1/", key="0a1b", application="queuey"), path)
    plain = {name: value for name, value in environment().items() if name != "XDG_CONFIG_HOME"}
    variables = plain | {variable: str(tmp_path / directory)}
    ended = run_to_end(["/bin/sh", "-euc", f'{line}\necho "$KEY"'], env=variables)
    assert (ended.stdout, ended.stderr) == ("0a1b\n", "")


def test_backup_and_restore(tmp_path: Path) -> None:
    """The backup of the operations page is made beside a running service, is private and sound, and can be restored."""
    page = "docs/operations.md"
    make, restore = runnable_blocks(page, below="Backup and restore")
    backup = tmp_path / "backup.sqlite3"
    variables = {"DATA": str(tmp_path / "data"), "BACKUP": str(backup)}
    with Served(tmp_path) as served:
        with served.client() as client:
            client.create_queue("kept")
            before = client.send_many("kept", [str(number) for number in range(2000)])
            printed = Reader(served, tmp_path, **variables).run(page, make)
            late = client.send("kept", "after the backup")
        assert "2,000 messages" in printed
        assert backup.stat().st_mode & 0o077 == 0
        assert served.end(signal.SIGTERM) == 0
        Reader(served, tmp_path, **variables).run(page, restore)
    assert check(tmp_path / "data") == []
    with Served(tmp_path, port=served.port) as again, again.client() as client:
        assert [message.id for message in client.read_all("kept", limit=1000)] == [receipt.id for receipt in before]
        assert client.send("kept", "after the restore").ticks > late.ticks
