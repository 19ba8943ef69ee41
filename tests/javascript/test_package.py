"""The npm package of the client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.npm import NAME, pack
from tests.javascript.test_node import NODE
from tests.servers.processes import run_well


@pytest.mark.skipif(NODE is None or shutil.which("npm") is None, reason="needs npm, which is not installed")
def test_the_package_is_installed_and_imported(tmp_path: Path) -> None:
    """A program that depends on it gets the client; the same sources give the same bytes."""
    package = pack(tmp_path / "dist")
    assert pack(tmp_path / "again").read_bytes() == package.read_bytes()
    (tmp_path / "package.json").write_text('{"type": "module"}')
    install = ["npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", str(package)]
    subprocess.run(install, cwd=tmp_path, check=True, timeout=100)
    program = f'import {{ Queuey }} from "{NAME}"; console.log(typeof new Queuey("http://x", "a").stream);'
    (tmp_path / "program.js").write_text(program)
    assert run_well([str(NODE), "program.js"], cwd=tmp_path) == "function\n"
