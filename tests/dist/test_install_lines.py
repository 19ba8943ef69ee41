"""Pages, samples and messages print commands that install this project, never by a name that belongs to others."""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from queuey.model.extras import DISTRIBUTION
from tests.dist.building import ROOT, extras
from tests.dist.install_lines import InstallLine, find_install_lines, lines_in, texts

CHECKOUT_OR_WHEEL = re.compile(
    r"(?:\.|(?:dist/|\./)?queuey_store-\*\.whl|\$\(echo (?:dist/|\./)queuey_store-\*\.whl\))"
    r"(?:\[(?P<extras>[\w,-]+)\])?"
)
BY_NAME = re.compile(rf"(?<![\w/.-])(?:queuey|qdo|{DISTRIBUTION})\[[a-z]")
"""An extra of a distribution of this name: one name belongs to others, and ours is on no index."""


def find_missing_targets(line: InstallLine) -> list[str]:
    return [word for word in line.targets() if not installable(word)] + [
        name for name in line.constraints() if not (ROOT / name).is_file()
    ]


def installable(word: str) -> bool:
    """Returns whether it is this project as a checkout or a wheel, with existing extras, or a pinned package."""
    ours = CHECKOUT_OR_WHEEL.fullmatch(word)
    if ours is not None:
        return ours["extras"] is None or set(ours["extras"].split(",")) <= set(extras())
    pinned = {canonicalize_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().split()}
    try:
        return canonicalize_name(Requirement(word).name) in pinned
    except InvalidRequirement:
        return False


def test_pages_and_samples() -> None:
    """Whatever a page or a sample installs is a checkout, a wheel that was built, or a package that is pinned."""
    lines = find_install_lines()
    assert {"README.md", "docs/install.md", "deploy/docker/Dockerfile"} <= {line.place.split(":")[0] for line in lines}
    assert [(line.place, find_missing_targets(line)) for line in lines if find_missing_targets(line)] == []


def test_no_page_goes_by_a_name() -> None:
    """No page, sample or message asks for this project by a name that an index would have to know."""
    everywhere = (*texts("docs", "deploy"), *texts("queuey", "qdo", suffix=".py"))
    assert [(name, found[0]) for name, text in everywhere for found in BY_NAME.finditer(text)] == []


def test_messages_have_one_source() -> None:
    """No message of the programs spells a command for pip itself, and the extras that they ask for exist."""
    sources = {name: text for name, text in texts("queuey", "qdo", suffix=".py") if name.endswith(".py")}
    del sources["queuey/model/extras.py"]  # It makes the commands.
    assert [line for name, text in sources.items() for line in lines_in(text, name)] == []
    asked = re.compile(r"(?:install_command|require)\([\"'](.*?)[\"']")
    named = {name for text in sources.values() for name in asked.findall(text)}
    assert {"cassandra", "spark", "zookeeper", "users"} <= named <= set(extras())
