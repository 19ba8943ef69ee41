"""The image: its file, and its steps, command and health check, run here as far as possible without Docker."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from queuey import settings
from tests.deploy import dockerfile
from tests.deploy.dockerfile import Stage
from tests.dist.building import build as build_distributions
from tests.dist.building import hashed_pins, requirements
from tests.servers.processes import run_to_end, run_well
from tests.servers.served import environment, free_port
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "docker" / "Dockerfile"
SECRET = re.compile(r"password|secret|token|private.key|BEGIN ", re.IGNORECASE)


@pytest.fixture
def stages() -> list[Stage]:
    return dockerfile.read(FILE)[1]


@pytest.fixture
def final(stages: list[Stage]) -> Stage:
    return stages[-1]


def find_copied(stage: Stage) -> set[str]:
    return {source for one in stage.all("COPY") if "from" not in one.options for source in one.words[:-1]}


def included_paths() -> list[str]:
    rules = [
        rule for rule in FILE.with_name("Dockerfile.dockerignore").read_text().splitlines() if not rule.startswith("#")
    ]
    assert rules[0] == "*"
    return [rule[1:] for rule in rules if rule.startswith("!")]


def test_what_is_built_with_stays_behind(stages: list[Stage]) -> None:
    """The image takes only the installed environment from the stage that has the sources and the installer's cache."""
    build, final = stages
    assert build.name == "build"
    assert find_copied(final) == set()
    assert [(one.options["from"], one.words) for one in final.all("COPY")] == [
        ("build", ["/opt/queuey", "/opt/queuey"])
    ]


def test_every_version_is_pinned(stages: list[Stage]) -> None:
    """Only files with pinned hashes are installed, among them the drivers for Cassandra and ZooKeeper."""
    (install,) = (one for one in stages[0].all("RUN") if " install " in one.rest)
    assert re.findall(r" install (?!--dir).*?(--[rn]\S+)", install.rest) == ["--require-hashes", "--no-deps"]
    names = {canonicalize_name(line.name) for line in requirements("server", "cassandra", "zookeeper", "sqs")}
    assert names <= hashed_pins("image").keys()


def test_python_is_one_that_is_tested() -> None:
    """The image has the oldest Python that the project supports, which the tests run on, in its slim form."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    version, kind, *_ = dockerfile.read(FILE)[0]["PYTHON"].split("-")
    assert (version, kind) == (required, "slim")


def test_context_has_what_is_copied_and_no_more(stages: list[Stage]) -> None:
    """The ignore file lets in exactly what the build copies, and all of it exists after `make dist`."""
    expected = find_copied(stages[0])
    assert set(included_paths()) == expected
    assert {name for name in expected if not (ROOT / name).exists()} == {"dist/queuey_store-*.whl"}


def test_it_does_not_run_as_root(final: Stage) -> None:
    """The service runs as a fixed number that is not root's, and owns the one directory that it writes to."""
    user = final.last("USER").rest
    number = int(user.partition(":")[0])
    assert number > 0
    makes = " ".join(one.rest for one in final.all("RUN"))
    assert f"--uid {number}" in makes
    (volume,) = final.last("VOLUME").words
    assert re.search(rf"install --directory --owner queuey .*--mode 0700 {volume}(\s|$)", makes)


def test_no_secret_is_built_in(stages: list[Stage]) -> None:
    """No argument, variable or step names a secret, and no file is fetched from elsewhere."""
    for stage in stages:
        assert stage.all("ADD") == []
        for instruction in stage.instructions:
            assert not SECRET.search(instruction.rest), instruction


def test_port_is_the_one_it_listens_on(final: Stage) -> None:
    """The port that the image declares is the one that it serves on, on all of the container's addresses."""
    loaded = settings.load({}, final.environment).settings
    assert final.last("EXPOSE").rest == str(loaded.port)
    assert loaded.host == "0.0.0.0"


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs hadolint")
def test_linter() -> None:
    """A linter for such files finds nothing."""
    run_well(["hadolint", FILE])


def run_as_image(final: Stage, home: Path, programs: Path) -> None:
    """Starts the image's command, runs its health check, stops it, and runs the check again, which must fail then.

    Args:
        final: The stage.
        home: Replaces the volume.
        programs: Directory of the installed programs.
    """
    port = free_port()
    variables = {name: value.replace("/var/lib", str(home)) for name, value in final.environment.items()}
    variables |= {"QUEUEY_PORT": str(port), "QUEUEY_HOST": "127.0.0.1", "PATH": f"{programs}{os.pathsep}/usr/bin:/bin"}
    variables_given = environment(**variables)
    check = dockerfile.Instruction("CMD", final.last("HEALTHCHECK").rest.partition("CMD ")[2]).words
    command = [*final.last("ENTRYPOINT").words, *final.last("CMD").words]
    process = subprocess.Popen(
        command, executable=programs / command[0], env=variables_given, cwd=home, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Queuey serves at")
        assert is_healthy(check, programs, variables_given)
        assert {path.name for path in (home / "queuey").iterdir()} >= {"profile.toml", "queuey.sqlite3"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert not is_healthy(check, programs, variables_given)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def is_healthy(check: list[str], programs: Path, variables: Mapping[str, str]) -> bool:
    return run_to_end(check, executable=programs / check[0], env=variables).returncode == 0


def test_command_and_health_check(final: Stage, tmp_path: Path) -> None:
    """The image's command serves with the image's variables; its health check knows when it has ended."""
    run_as_image(final, tmp_path, Path(sys.executable).parent)


@pytest.mark.slow
def test_steps(stages: list[Stage], tmp_path: Path) -> None:
    """The build's steps, run on copied files, make an environment that serves, with Cassandra's driver and tables."""
    first, final = stages
    source, target, home = tmp_path / "src", tmp_path / "queuey", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    shutil.copy(ROOT / "requirements" / "image.txt", source)
    build_distributions(ROOT, source)
    (step,) = (one for one in first.all("RUN") if " install " in one.rest)
    shell = re.sub(r"--mount=\S+\s*", "", step.rest).replace("/opt/queuey", str(target))
    shell = shell.replace("python -m venv", f"{sys.executable} -m venv", 1)
    run_well(["/bin/sh", "-euc", shell], cwd=source)
    shutil.rmtree(source)
    run_as_image(final, home, target / "bin")
    code = (
        "import cassandra.cluster; from queuey.storage.cassandra.admin.migrations import read_known_migrations;"
        " print(len(read_known_migrations()))"
    )
    shown = run_well([target / "bin" / "python", "-c", code], cwd=home)
    assert shown.split() == [str(len(list((ROOT / "cql").glob("*.cql"))))]
