"""Files for contributors and code hosts: hooks, the workflow, forms for issues and pull requests."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"

if (ROOT / "PKG-INFO").exists():
    pytest.skip("a source distribution has no files of code hosts", allow_module_level=True)


def calls_what_exists(command: str) -> bool:
    program, *arguments = shlex.split(command)
    if program.startswith(".venv/bin/"):
        return Path(sys.executable).with_name(Path(program).name).exists() and all(
            (ROOT / argument).exists() for argument in arguments if argument.endswith(".py")
        )
    return os.access(ROOT / program, os.X_OK)


def test_workflow() -> None:
    """The workflow runs existing commands, on every version of Python from the oldest supported one."""
    text = (GITHUB / "workflows" / "ci.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["check"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs == [".ci/run"]
    assert calls_what_exists(*runs)
    supported = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    versions = job["strategy"]["matrix"]["python"]
    assert [version for version in versions if not supported.contains(version)] == []
    assert f">={versions[0]}" == str(supported)
    assert "://" not in text, "a workflow names no host"


def test_checklist() -> None:
    """The commands that a pull request asks for exist."""
    template = (GITHUB / "pull_request_template.md").read_text()
    targets = re.findall(r"`make (\w+)`", template)
    assert targets
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}: " not in makefile] == []
    assert calls_what_exists(*re.findall(r"`(\.ci/\w+)`", template))
