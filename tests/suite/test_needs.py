"""The suite is divided by what tests need, and no test is left out of both parts."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.servers.processes import run_to_end
from tests.suite.needs import BY_PATH, NEEDS, ROOT, UnmarkedProgramError


@pytest.mark.parametrize("path", sorted(BY_PATH))
def test_every_path_of_the_table_exists(path: str) -> None:
    """Every path of the table exists; a moved one would leave its tests without a mark."""
    assert (ROOT / path).exists()
    assert BY_PATH[path] in {None, *NEEDS}


def test_no_folder_is_passed_over(pytestconfig: pytest.Config) -> None:
    """Tests are looked for in every folder that has some."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [folder for folder in folders for pattern in patterns if fnmatch(folder.name, pattern)] == []


def test_a_program_needs_a_mark() -> None:
    """A test without a mark cannot start a program."""
    with pytest.raises(UnmarkedProgramError, match="needs_programs"):
        subprocess.Popen([sys.executable, "-c", ""])


@pytest.mark.needs_programs
@pytest.mark.parametrize(("suite", "passed"), [("test", "1 passed, 3 deselected"), ("check", "2 passed, 2 deselected")])
def test_the_parts_of_the_suite(tmp_path: Path, suite: str, passed: str) -> None:
    """A test belongs to one part; slow ones belong to none."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n"
        "def test_needs_nothing(): pass\n\n"
        "@pytest.mark.needs_java\ndef test_needs_java(): pass\n\n"
        "@pytest.mark.needs_programs\ndef test_starts_programs(): pass\n\n"
        "@pytest.mark.slow\ndef test_takes_long(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.suite.needs", "-c", "/dev/null", f"--rootdir={tmp_path}"]
    assert passed in run_to_end([*command, "-W", "ignore", "--suite", suite, str(tmp_path)], cwd=ROOT).stdout
