"""Jars are fetched once, completely or not at all."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local import jars
from deploy.local.errors import CannotFetch
from tests.replacing import replace

pytestmark = pytest.mark.needs_programs

BUNDLE = jars.Bundle("things-1.0", ("org.things:things:1.0", "org.more:more:2.0"))


class Maven:
    """A command called mvn, first in the path, that copies a file into the output directory, and counts its runs."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jar = directory / "things-1.0.jar"
        self.runs = directory / "runs"
        self.runs.touch()
        with zipfile.ZipFile(self.jar, "w") as jar:
            jar.writestr("Things.class", b"of no use")
        command = directory / "mvn"
        command.write_text(
            f"#!/bin/sh\necho run >> {self.runs}\n"
            f'for word in "$@"; do case $word in -DoutputDirectory=*) cp {self.jar} "${{word#*=}}";; esac; done\n'
        )
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(directory), prepend=":")

    def count(self) -> int:
        return len(self.runs.read_text().splitlines())


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Maven]:
    """Provides Maven without a network, and an empty cache of jgo."""

    def nothing(*_: object) -> None:
        raise CannotFetch("no network")

    with replace(jars._fetch_by_jgo, nothing):
        yield Maven(tmp_path, monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Names a cache that does not exist yet."""
    return tmp_path / "cache"


def test_fetched_once(maven: Maven, cache: Path) -> None:
    """A cached jar is not fetched again."""
    fetched = jars.fetch_jars(BUNDLE, cache)
    assert [path.name for path in fetched.iterdir()] == ["things-1.0.jar"]
    assert jars.fetch_jars(BUNDLE, cache) == fetched
    assert maven.count() == 1


def test_fetched_by_one_of_many(maven: Maven, cache: Path) -> None:
    """One of several simultaneous callers fetches the jar, and all get it."""
    with ThreadPoolExecutor(4) as pool:
        jars_fetched = set(pool.map(lambda _: jars.fetch_jars(BUNDLE, cache), range(4)))
    assert jars_fetched == {cache / BUNDLE.name}
    assert maven.count() == 1


def test_half_a_jar(maven: Maven, cache: Path) -> None:
    """A truncated jar is not put into the cache, and the next attempt starts again."""
    whole = maven.jar.read_bytes()
    maven.jar.write_bytes(whole[:-10])
    with pytest.raises(CannotFetch, match=r"(?s)things-1.0: no network.*things-1.0.jar was not fetched as a whole"):
        jars.fetch_jars(BUNDLE, cache)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    maven.jar.write_bytes(whole)
    assert jars.fetch_jars(BUNDLE, cache).is_dir()
