"""``queuey`` and ``qdo`` as a whole: their lists of commands, their versions, and their imports."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import qdo.cli
import queuey.cli
from tests.commands import make_runner
from tests.servers.processes import run_well

HEAVY = {
    "queuey": {"httpx2", "apsw", "pyramid", "httptools", "asyncio"},
    "qdo": {"httpx2", "apsw", "kazoo", "prometheus_client", "qdo.worker.worker", "qdo.consumer.consumer"},
}
"""Modules that a program imports only for the commands that need them."""


@pytest.mark.parametrize(("program", "typo", "meant"), [(queuey, "snd", "send"), (qdo, "stats", "status")])
def test_a_program(program: ModuleType, typo: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help lists every command, --version prints the version, and a command that does not exist is corrected."""
    run = make_runner(program.__name__, program.cli.main, monkeypatch)
    listed = run("--help").text
    assert [name for name in program.cli.COMMANDS if name not in listed] == []
    assert run("--version") == (0, f"{program.__name__} {program.__version__}\n".encode(), "")
    corrected = run(typo)
    assert (corrected.code, meant in corrected.err) == (2, True)
    without = run()
    assert meant in without.text + without.err


@pytest.mark.needs_programs
@pytest.mark.parametrize(
    "line",
    ["queuey --help", "queuey queue --help", "queuey settings", "qdo --help", "qdo work --help", "qdo --version"],
)
def test_help_stays_light(line: str) -> None:
    """Help and settings load no HTTP library, no driver, no server and no worker."""
    name = line.split(maxsplit=1)[0]
    program = (
        f"import sys\nfrom {name}.cli import main\nsys.argv = {line.split()!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"heavy = {HEAVY[name]!r} & sys.modules.keys()\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    run_well([sys.executable, "-c", program])
