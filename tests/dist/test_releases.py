"""Each recorded version's wheel, installed by itself: its client and the present service, and vice versa.

The wheel is built from the commit that wrote the record.
"""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.dist.building import build
from tests.dist.environments import Environment
from tests.releases import recording
from tests.releases.compared import LIVE, differences
from tests.releases.recording import Released, folders
from tests.servers.served import Served

pytestmark = pytest.mark.slow


class Installed(NamedTuple):
    """A recorded version in an environment of its own."""

    released: Released
    program: ModuleType
    environment: Environment

    def differences(self, answers: dict[str, Any]) -> list[str]:
        return differences(self.released.answers, answers, drawn=LIVE)

    def serve(self, directory: Path) -> Served:
        program = [str(self.environment.programs / "queuey")]
        return Served(directory, program=program, variables=self.environment.variables)


def build_wheel(folder: Path, target: Path) -> Path:
    """Builds the wheel of the commit that wrote a record; returns its path."""
    (target / "tree").mkdir()
    recording.check_out(folder, target / "tree")
    return build(target / "tree", target).wheel


@pytest.fixture(scope="module", params=folders(), ids=[folder.name for folder in folders()])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder: Path = request.param
    released = recording.read(folder)
    home = tmp_path_factory.mktemp("release")
    environment = Environment(home / "environment")
    environment.install(str(build_wheel(folder, home)), directory=home)
    program = importlib.import_module(f"tests.releases.{folder.name}.program")
    yield Installed(released, program, environment)
    shutil.rmtree(home)


def test_its_client_with_the_present_service(installed: Installed, tmp_path: Path) -> None:
    """A program on the version's client gets from the present service the answers that it got then."""
    with Served(tmp_path) as served:
        profile = served.profile
        words = [str(installed.program.__file__), profile.url, profile.key, profile.application]
        printed = installed.environment.shell(shlex.join(["python", *words]), tmp_path)
    answers = dict(json.loads(line) for line in printed.splitlines())
    assert installed.differences(answers) == []


def test_its_service_with_the_present_client(installed: Installed, tmp_path: Path) -> None:
    """With the present client, the program gets the recorded answers from the service of that version."""
    with installed.serve(tmp_path) as served, served.client() as client:
        kept = installed.program.fill(client)
        answers = {name: recording.plain(answer) for name, answer in installed.program.ask(client, kept)}
    assert installed.differences(answers) == []


def test_upgrade(installed: Installed, tmp_path: Path) -> None:
    """The present service goes on with the data directory that the version's service filled."""
    with installed.serve(tmp_path) as served, served.client() as client:
        kept = installed.program.fill(client)
    with Served(tmp_path) as served, served.client() as client:
        answers = {name: recording.plain(answer) for name, answer in installed.program.ask(client, kept)}
    assert installed.differences(answers) == []
