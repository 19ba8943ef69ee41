"""The workflow of code hosts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.dist.building import project

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"

if (ROOT / "PKG-INFO").exists():
    pytest.skip("a source distribution has no files of code hosts", allow_module_level=True)


def test_workflow() -> None:
    """The workflow runs existing commands, on every version of Python from the oldest supported one."""
    text = (GITHUB / "workflows" / "ci.yml").read_text()
    job = yaml.safe_load(text)["jobs"]["check"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert [run.split()[-1] for run in runs] == ["requirements/ci.txt", ".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    supported = project()["requires-python"]
    versions = job["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == supported
    classified = [line.rpartition(" ")[2] for line in project()["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert versions == classified
    assert "://" not in text, "a workflow names no host"
