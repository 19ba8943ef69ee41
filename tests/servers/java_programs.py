"""Java programs of tests: compiled with their libraries, with a line protocol."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.local import jars, java
from tests.waiting import PATIENCE_SECONDS

CURATOR = jars.Bundle("curator-recipes-5.9.0", ("org.apache.curator:curator-recipes:5.9.0",))
COMPILER = jars.Bundle("ecj-3.32.0", ("org.eclipse.jdt:ecj:3.32.0",), alone=True)
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
"""JVM options for programs that run for seconds."""


def build(source: Path, libraries: jars.Bundle, directory: Path, options: Sequence[str] = QUICK) -> list[str]:
    """Compiles a program of one file into a directory. Returns the command that runs it.

    Args:
        source: The file.
        libraries: Its libraries.
        directory: The directory for its classes.
        options: Options of the JVM that runs it.
    """
    lib = jars.fetch_jars(libraries)
    path = os.pathsep.join([str(directory), f"{lib}/*"])
    compiler = next(jars.fetch_jars(COMPILER).glob("*.jar"))
    classpath = os.pathsep.join(map(str, lib.glob("*.jar")))
    command: list[str | Path] = [
        java.find_java(),
        *QUICK,
        "-jar",
        compiler,
        "-11",
        "-nowarn",
        "-cp",
        classpath,
        "-d",
        directory,
        source,
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=300)
    return [str(java.find_java()), *options, "-cp", path, source.stem]


class JavaProgram:
    """A process that prints ``ready`` and then answers each line with one line.

    Args:
        command: The command from :func:`build`, with arguments.
        says: Returns whether a line is an answer. Libraries may print lines of their own.
    """

    def __init__(self, command: list[str], says: Callable[[str], bool] = lambda line: line.startswith("{")) -> None:
        self._says = says
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self.read_answer() != "ready\n":
            pass

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read_answer(self) -> str:
        """Returns the next answer, or ``ready``; skips other lines. Fails if the program has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "ready\n" or self._says(line):
                return line
        raise AssertionError(f"the program has ended with {self.process.wait(PATIENCE_SECONDS)}")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_SECONDS)
