"""Archives of classes: used once they are whole, made anew for another Java or other jars."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.class_archive import ClassArchive, archive_of


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A command and a jar."""
    java, jar = tmp_path / "java", tmp_path / "a.jar"
    for path in (java, jar):
        path.write_text(path.name)
    return java, jar


@pytest.fixture
def archive(files: tuple[Path, Path], tmp_path: Path) -> ClassArchive:
    """One that was not made yet."""
    return archive_of("program", files[0], [files[1]], tmp_path / "kept")


def recorded(archive: ClassArchive) -> Path:
    """Where a JVM writes it."""
    return Path(archive.record()[-1].partition("=")[2])


def test_one_jvm_records_and_later_ones_use_it(archive: ClassArchive) -> None:
    """Before, nothing is used; afterwards, nothing is recorded."""
    assert archive.use() == ()
    recorded(archive).write_bytes(b"whole")
    archive.keep()
    assert archive.record() == ()
    assert archive.use()[-1] == f"-XX:SharedArchiveFile={archive.path}"
    assert archive.path.read_bytes() == b"whole"


@pytest.mark.parametrize("left", [b"", bytes(100)])
def test_what_a_killed_jvm_left_is_not_used(archive: ClassArchive, left: bytes) -> None:
    """The header, which is written last, is missing."""
    place = recorded(archive)
    place.write_bytes(left)
    archive.keep()
    assert archive.use() == ()
    assert not place.exists()


def test_nothing_was_recorded(archive: ClassArchive) -> None:
    """Then the next JVM records."""
    archive.keep()
    assert archive.record()


def test_another_jar_has_another_archive(archive: ClassArchive, files: tuple[Path, Path], tmp_path: Path) -> None:
    """So has a jar that was changed, and another Java."""
    java, jar = files
    assert archive_of("program", java, [jar], tmp_path / "kept") == archive
    jar.write_text("changed")
    assert archive_of("program", java, [jar], tmp_path / "kept") != archive
    assert archive_of("program", java, [], tmp_path / "kept") != archive
