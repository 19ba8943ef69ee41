"""The optional parts of the distribution, and how a user installs what one of them needs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

DISTRIBUTION = "queuey-store"
"""The name on the package index, where ``queuey`` and ``qdo`` belong to other projects."""


def install_command(extra: str) -> str:
    """Returns the command that installs what an extra needs, for the Python that runs this.

    The command names the packages that the extra stands for. So it works however this version was installed: from an
    index, a wheel or a checkout. Only a checkout that was never installed is named itself.

    Args:
        extra: Its name, as in ``pyproject.toml``.

    Returns:
        A line for a shell, such as ``/opt/queuey/bin/python -m pip install 'cassandra-driver<4,>=3.29'``.
    """
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - only when something is missing

    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        lines = []
    needed = [name for name, _, marker in (line.partition(";") for line in lines) if _asks_for(marker, extra)]
    checkout = Path(__file__).parents[1]
    return shlex.join([sys.executable, "-m", "pip", "install", *(needed or [f"{checkout}[{extra}]"])])


def _asks_for(marker: str, extra: str) -> bool:
    return marker.strip().replace('"', "'") == f"extra == '{extra}'"
