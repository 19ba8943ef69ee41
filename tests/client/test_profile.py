"""The profile file: private from the first byte, replaced atomically, refused when others can read it."""

from __future__ import annotations

import os
import stat
import tomllib
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.client import Profile, ProfileExposed, ProfileInvalid, ProfileNotFound
from queuey.client.credentials.profile import default_path, read_profile, write_profile

PROFILE = Profile(url="http://127.0.0.1:5000/v1/queuey/", application="queuey", key="k3y")

printable = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)


@given(url=printable, application=printable, key=printable)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, url: str, application: str, key: str
) -> None:
    """Any values survive the file, quotes and backslashes included."""
    path = tmp_path_factory.mktemp("p") / "profile.toml"
    profile = Profile(url=url, application=application, key=key)
    assert write_profile(profile, path) == path
    assert read_profile(path) == profile
    assert tomllib.loads(path.read_text("utf-8")) == {"url": url, "application": application, "key": key}


def test_the_key_is_not_shown() -> None:
    """A profile's repr leaves the key out."""
    assert (
        repr(Profile(url="http://a", application="b", key="k3y")) == "Profile(url='http://a', application='b', key=...)"
    )


def test_a_file_is_private_before_the_key_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment does a file that others could open hold the key, nor is its folder open to others."""
    modes: list[tuple[int, int]] = []
    real = os.open

    def spy(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = real(path, flags, mode, dir_fd=dir_fd)
        status = os.fstat(descriptor)
        if flags & os.O_CREAT:
            modes.append((stat.S_IMODE(status.st_mode), status.st_size))
            assert flags & os.O_EXCL
        return descriptor

    before = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", spy)
        path = write_profile(PROFILE, tmp_path / "new" / "profile.toml")
    finally:
        os.umask(before)
    assert modes == [(0o600, 0)]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_replacing_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old profile as it was and nothing beside it; a reader of the old one keeps it."""
    path = write_profile(PROFILE, tmp_path / "profile.toml")
    other = Profile(url="http://other.example", application="other", key="other")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(ProfileInvalid, match="No space left"):
            write_profile(other, path)
    assert read_profile(path) == PROFILE
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.toml"]
    with path.open() as reader:
        write_profile(other, path)
        assert "k3y" in reader.read()
    assert read_profile(path) == other


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644, 0o601])
def test_a_profile_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """A profile with any rights of group or others is refused; the error says what to do."""
    path = write_profile(PROFILE, tmp_path / "profile.toml")
    path.chmod(mode)
    with pytest.raises(ProfileExposed, match=r"chmod 600 .*profile\.toml"):
        read_profile(path)


@pytest.mark.parametrize(
    "content", ['url = "u"\nkey = s3cret', 'key = "s3cret"', 'url = 5\napplication = "a"\nkey = "s3cret"', "\xff", ""]
)
def test_a_broken_profile_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    """The error names the file and never quotes the line that may hold the key."""
    path = tmp_path / "profile.toml"
    path.touch(mode=0o600)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ProfileInvalid) as caught:
        read_profile(path)
    shown = "".join(traceback.format_exception(caught.value, chain=True))
    assert "s3cret" not in shown.replace(repr(content), "")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", ["", "a\nb", "\x00", "\ud800"])
def test_a_profile_holds_only_what_can_be_written(value: str) -> None:
    """Empty values and control characters are refused when the profile is made."""
    with pytest.raises(ProfileInvalid):
        Profile(url="http://127.0.0.1", application="queuey", key=value)


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    """The error says which file was looked for."""
    with pytest.raises(ProfileNotFound, match="nowhere"):
        read_profile(tmp_path / "nowhere.toml")


def test_the_place_follows_the_environment_of_the_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """QUEUEY_PROFILE names the file; otherwise it is in the user's configuration directory."""
    monkeypatch.setenv("QUEUEY_PROFILE", str(tmp_path / "mine.toml"))
    assert default_path() == tmp_path / "mine.toml"
    monkeypatch.delenv("QUEUEY_PROFILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert default_path().name == "profile.toml"
    assert default_path().parent.name == "queuey"
