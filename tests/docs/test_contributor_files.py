"""The workflow of code hosts."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"

if (ROOT / "PKG-INFO").exists():
    pytest.skip("a source distribution has no files of code hosts", allow_module_level=True)


def test_workflow() -> None:
    """The workflow runs existing commands, on every version of Python from the oldest supported one."""
    text = (GITHUB / "workflows" / "ci.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["check"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    supported = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    versions = job["strategy"]["matrix"]["python"]
    assert [version for version in versions if not supported.contains(version)] == []
    assert f">={versions[0]}" == str(supported)
    assert "://" not in text, "a workflow names no host"
