"""The page for users who test their programs, run as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import SCRIPTS, runnable_blocks
from tests.servers.processes import run_well
from tests.servers.served import environment

PAGE = "docs/testing-your-app.md"


@pytest.mark.needs_programs
def test_page(tmp_path: Path) -> None:
    """Every file that the page writes is a passing test."""
    printed = ""
    for block in runnable_blocks(PAGE):
        if block.title:
            block.save(tmp_path)
            continue
        variables = environment(PATH=f"{SCRIPTS}:/usr/bin:/bin")
        printed += run_well(["/bin/sh", "-eu", "-c", block.text], cwd=tmp_path, env=variables)
    assert printed.count(" passed") == 4
