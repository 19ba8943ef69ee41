"""Contents of the wheel and of the sdist."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import tarfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import qdo
import queuey
from queuey.model.extras import DISTRIBUTION, install_command
from tests.dist.building import Built, build, extras, files, is_cache, requirements

LICENCE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)[^/]*$")
INFO = f"{DISTRIBUTION.replace('-', '_')}-{queuey.__version__}.dist-info"


@pytest.fixture(scope="module")
def names(built: Built) -> set[str]:
    with ZipFile(built.wheel) as wheel:
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def metadata(built: Built) -> Message:
    with ZipFile(built.wheel) as wheel:
        return Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())


def test_wheel_has_both_packages(names: set[str]) -> None:
    """The wheel has every file of both packages, every table of Cassandra and the demo, and nothing else."""
    tables = {f"queuey/storage/cassandra/{name}" for name in files("cql")}
    tables |= {name.replace("deploy/", "queuey/") for name in files("deploy/demo")}
    assert {name for name in names if not name.startswith(f"{INFO}/")} == {*files("queuey", "qdo")} | tables
    assert {"queuey/py.typed", "qdo/py.typed", "queuey/spark/log4j2.properties"} <= names


def test_wheel_has_the_licences(names: set[str], metadata: Message) -> None:
    """The licences of the project and of vendored code are declared and stored with the metadata."""
    expected = {"LICENSE"} | {name for name in files("queuey", "qdo") if LICENCE.search(name)}
    assert set(metadata.get_all("License-File", [])) == expected
    assert {f"{INFO}/licenses/{name}" for name in expected} <= names
    assert metadata["License-Expression"] == "Apache-2.0"


def test_wheel_has_one_version(metadata: Message) -> None:
    """Both packages have the version of the distribution, whose name is one that belongs to this project."""
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, queuey.__version__)
    assert qdo.__version__ == queuey.__version__


def test_wheel_has_the_commands(built: Built) -> None:
    """The commands keep their names, and entry points found by name exist."""
    with ZipFile(built.wheel) as wheel:
        lines = wheel.read(f"{INFO}/entry_points.txt").decode().split("\n")
    assert [line for line in lines if line] == [
        "[console_scripts]",
        "qdo = qdo.__main__:main",
        "queuey = queuey.__main__:main",
        "[queuey.credentials]",
        "Bearer = queuey.access.credentials.bearer:Bearer",
        "BrowserID = queuey.access.credentials.browserid:BrowserId",
        "[queuey.embedded]",
        "open = queuey.embedded:open",
        "open_async = queuey.embedded:open_async",
        "[queuey.extensions]",
        "console = queuey.console:ConsoleExtension",
        "facades = queuey.facades:FacadesExtension",
    ]


@pytest.mark.parametrize("extra", extras())
def test_messages_name_all_packages(extra: str, metadata: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the wheel's metadata a message names every package of an extra, within its bounds."""
    monkeypatch.setattr(importlib.metadata, "requires", {DISTRIBUTION: metadata.get_all("Requires-Dist")}.__getitem__)
    named = shlex.split(install_command(extra))[4:]
    core = {_facts(one) for one in requirements()}
    assert {_facts(Requirement(line)) for line in named} == {_facts(one) for one in requirements(extra)} - core


def _facts(requirement: Requirement) -> tuple[str, str, str]:
    return requirement.name.lower(), str(sorted(requirement.extras)), str(requirement.specifier)


def test_sdist_builds_the_same(built: Built, tmp_path: Path) -> None:
    """From the unpacked sdist, later and elsewhere, both are built again, byte for byte; it has no caches."""
    with tarfile.open(built.sdist) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
        sdist.extractall(tmp_path, filter="data")
    assert [name for name in names if is_cache(name)] == []
    assert {
        *files("queuey", "qdo", "cql"),
        "constraints.txt",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
    } <= set(names)
    (tree,) = tmp_path.iterdir()
    again = build(tree, tmp_path / "again")
    assert again.wheel.name == built.wheel.name
    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert again.sdist.read_bytes() == built.sdist.read_bytes()
