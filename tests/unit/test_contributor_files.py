"""Files for contributors and code hosts: hooks, the workflow, forms for issues and pull requests."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
INPUTS = {"markdown": "value", "textarea": "label", "input": "label", "dropdown": "label", "checkboxes": "label"}
"""Elements of a form, and the attributes that each must have."""

if (ROOT / "PKG-INFO").exists():
    pytest.skip("a source distribution has no files of code hosts", allow_module_level=True)


def load_yaml(path: Path) -> Any:  # noqa: ANN401 - a document of YAML
    return yaml.safe_load(path.read_text())


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


def test_hooks() -> None:
    """Each hook runs a tool of the environment and an existing script, without downloads."""
    repositories = load_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert [hook["id"] for hook in hooks if hook["language"] != "system" or not calls_what_exists(hook["entry"])] == []
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    tools = {shlex.split(hook["entry"])[0].removeprefix(".venv/bin/") for hook in hooks}
    assert {tool for tool in tools if f"$(BIN)/{tool}" not in lint} == set(), "a hook is not in make lint"


@pytest.mark.parametrize("path", FORMS, ids=[path.stem for path in FORMS])
def test_issue_forms(path: Path) -> None:
    """A form has a name, a description, and elements that the code host can show, each with its own id."""
    form = load_yaml(path)
    assert form["name"]
    assert form["description"]
    body = form["body"]
    assert [element for element in body if not element["attributes"].get(INPUTS[element["type"]])] == []
    ids = [element["id"] for element in body if element["type"] != "markdown"]
    assert len(set(ids)) == len(ids)


def test_forms_are_there() -> None:
    """There is a form for bugs and one for features, and every issue needs a form."""
    assert [path.stem for path in FORMS] == ["bug", "feature"]
    assert load_yaml(GITHUB / "ISSUE_TEMPLATE" / "config.yml") == {"blank_issues_enabled": False}


def test_checklist() -> None:
    """The commands that a pull request asks for exist."""
    template = (GITHUB / "pull_request_template.md").read_text()
    targets = re.findall(r"`make (\w+)`", template)
    assert targets
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}: " not in makefile] == []
    assert calls_what_exists(*re.findall(r"`(\.ci/\w+)`", template))
