"""Optional dependencies of the distribution, and the command that installs them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

DISTRIBUTION = "queuey-store"
"""Name on the package index, where ``queuey`` and ``qdo`` belong to other projects."""


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
    needed = [name for name, _, marker in (line.partition(";") for line in lines) if _asks_for(marker, extra)]
    checkout = Path(__file__).parents[2]
    return shlex.join([sys.executable, "-m", "pip", "install", *(needed or [f"{checkout}[{extra}]"])])


def _asks_for(marker: str, extra: str) -> bool:
    return marker.strip().replace('"', "'") == f"extra == '{extra}'"
