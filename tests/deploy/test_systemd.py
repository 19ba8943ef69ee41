"""The systemd unit: checked by systemd itself where it is installed, and against the service's behaviour."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from queuey import settings
from queuey.cli import load
from queuey.terminal.output import BAD_TLS, OTHER_STORE, WRONG_USAGE
from queuey.web.http.processes import KILL_DELAY

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "queuey.service"
VARIABLES = ROOT / "deploy" / "systemd" / "queuey.env"
MAX_EXPOSURE = 20
"""Max exposure in tenths: 2.0 of 10, which systemd calls OK."""

with_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def read(path: Path) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            lines.setdefault(key, []).append(value)
    return lines


@pytest.fixture
def unit() -> dict[str, list[str]]:
    return read(UNIT)


@pytest.fixture
def command(unit: dict[str, list[str]]) -> Sequence[str]:
    return shlex.split(unit["ExecStart"][0])


@with_systemd
def test_systemd_accepts_it(tmp_path: Path) -> None:
    """Every line of the unit is known to systemd, with the program put where it is here."""
    installed = tmp_path / "queuey.service"
    program = Path(sys.executable).with_name("queuey")
    installed.write_text(UNIT.read_text().replace("/opt/queuey/bin/queuey", str(program)))
    ended = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@with_systemd
def test_it_may_do_little() -> None:
    """By systemd's own measure the unit is hardly exposed."""
    threshold = f"--threshold={MAX_EXPOSURE}"
    analysis = ["systemd-analyze", "security", "--offline=yes", "--no-pager", threshold, str(UNIT)]
    ended = subprocess.run(analysis, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_it_starts_a_command_of_ours(command: Sequence[str]) -> None:
    """The command and its options are those of the command line."""
    program, name, *arguments = command
    assert Path(program).name == "queuey"
    options = {option for parameter in load(name).params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} <= options


def test_stop_waits_for_requests(unit: dict[str, list[str]]) -> None:
    """The stop goes by SIGTERM to the parent alone, and waits longer than the service takes."""
    takes = settings.load({}, {}).settings.shutdown_timeout + KILL_DELAY
    assert float(unit["TimeoutStopSec"][0]) > takes
    assert (unit["KillSignal"], unit["KillMode"]) == (["SIGTERM"], ["mixed"])


def test_restarts_where_that_helps(unit: dict[str, list[str]]) -> None:
    """It is started again after a crash, but not when settings, TLS files or the data's version are wrong."""
    assert unit["Restart"] == ["on-failure"]
    hopeless = {int(code) for code in unit["RestartPreventExitStatus"][0].split()}
    assert hopeless == {WRONG_USAGE, OTHER_STORE, BAD_TLS}


def test_it_can_write_where_it_keeps_things(unit: dict[str, list[str]]) -> None:
    """The settings that the page shows with the unit keep everything in the one directory that it lets it write to."""
    (state,) = unit["StateDirectory"]
    section = (ROOT / "docs" / "operations.md").read_text().partition("\n## As a systemd service\n")[2]
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    kept = {name: Path(value) for name, value in tomllib.loads(shown).items() if name in {"data", "profile"}}
    assert set(kept) == {"data", "profile"}
    assert {path.parent for path in kept.values()} == {Path("/var/lib") / state}


def test_variables(unit: dict[str, list[str]]) -> None:
    """The file with variables is the one that the unit reads, and every line of it is a setting that is accepted."""
    (named,) = unit["EnvironmentFile"]
    assert Path(named.removeprefix("-")).name == VARIABLES.name
    pairs = re.findall(r"^#?(QUEUEY_\w+)=(\S+)$", VARIABLES.read_text(), re.MULTILINE)
    assert len(pairs) == 3
    settings.load({"store": "cassandra://a/queuey"}, dict(pairs))


def test_files_are_for_its_connections(unit: dict[str, list[str]]) -> None:
    """The limit of open files is above what the connections of many workers take."""
    assert int(unit["LimitNOFILE"][0]) >= 16 * settings.load({}, {}).settings.connections
