"""The lines of docs/install.md for pipx and uv, run on the built wheel. They need a package index."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import queuey
from tests import pages
from tests.dist.environments import Environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with pipx and uv, which keep everything in its directory."""
    home = tmp_path_factory.mktemp("tools") / "environment"
    made = Environment(home)
    made.variables |= {
        "PIPX_BIN_DIR": str(home / "tools"),
        "PIPX_HOME": str(home / "pipx"),
        "UV_TOOL_BIN_DIR": str(home / "tools"),
        "UV_TOOL_DIR": str(home / "uv"),
    }
    # uv does not read pip's variables.
    for name, of_pip in {"SSL_CERT_FILE": "PIP_CERT", "UV_DEFAULT_INDEX": "PIP_INDEX_URL"}.items():
        if of_pip in os.environ:
            made.variables.setdefault(name, os.environ[of_pip])
    made.shell("pip install -q pipx uv", home)
    yield made
    shutil.rmtree(home)


@pytest.mark.parametrize(
    "block", pages.runnable_blocks("docs/install.md", below="As a tool"), ids=lambda block: block.text.split()[0]
)
def test_lines(block: pages.Block, tools: Environment, checkout: Path) -> None:
    """Each line installs the commands, of this version, into an environment of their own."""
    tools.shell(block.text, checkout)
    commands = tools.home / "tools"
    printed = tools.shell(f"{commands}/queuey --version; {commands}/qdo --version", checkout)
    assert printed.splitlines() == [f"queuey {queuey.__version__}", f"qdo {queuey.__version__}"]
    shutil.rmtree(commands)
