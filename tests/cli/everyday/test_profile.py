"""``queuey profile``: shows and writes the profile, and never a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuey.client.credentials.profile import read_profile
from tests.commands import Run

WHERE = ["--url", "https://queuey.example.org", "--app", "shop"]


def test_a_profile_is_written_and_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key comes from standard input and is in the file alone, which only its owner may read."""
    path = tmp_path / "new" / "profile.toml"
    monkeypatch.setenv("QUEUEY_PROFILE", str(path))
    missing = run("profile")
    assert missing.code == 1
    assert f"there is no profile {path}. Write one: queuey profile --url " in missing.err
    made = run("profile", *WHERE, "--key", stdin=b"  s3cret\n")
    assert (made.code, made.err) == (0, "")
    assert read_profile(path).written() == {"url": WHERE[1], "application": "shop", "key": "s3cret"}
    assert path.stat().st_mode & 0o077 == 0
    shown = run("profile", "--json")
    assert shown.json == {"file": str(path), "url": WHERE[1], "application": "shop", "key": "not shown"}
    assert "s3cret" not in made.text + shown.text + run("profile").text


def test_a_key_is_not_replaced_by_mistake(run: Run, tmp_path: Path) -> None:
    """An existing key is replaced only after a question; a new address needs a key of its own."""
    file = ["--profile", str(tmp_path / "profile.toml")]
    assert run("profile", *WHERE, "--key", *file, stdin=b"first\n").code == 0
    assert run("profile", "--key", *file, stdin=b"second\n").code == 2
    assert run("profile", *WHERE, *file).code == 2
    assert read_profile(Path(file[1])).key == "first"
    assert run("profile", "--key", "--yes", *file, stdin=b"second\n").code == 0
    assert read_profile(Path(file[1])).key == "second"


@pytest.mark.parametrize("key", [b"", b"\n", b"a b\n", "schlüssel\n".encode(), b"x\x00y\n", b"k" * 5000 + b"\n"])
def test_what_is_no_key(run: Run, tmp_path: Path, key: bytes) -> None:
    """An invalid key is refused without being shown, and no file is written."""
    path = tmp_path / "profile.toml"
    ended = run("profile", *WHERE, "--key", "--profile", str(path), stdin=key)
    assert ended.code == 1
    assert ended.err.startswith("queuey: no key was read: ")
    assert not path.exists()
