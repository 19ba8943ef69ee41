"""``qdo`` as a whole: its list of commands, its version, what wrong usage and failures look like."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qdo
from qdo.cli import COMMANDS, load
from queuey.client import EARLIEST, Client
from tests.commands import Run
from tests.qdo.cli.conftest import GROUP, Group
from tests.servers.served import environment, free_port


def test_every_command_is_listed_and_loads(run: Run) -> None:
    """Help names every command, and each one's own help works, that of its parts too."""
    listed = run("--help").text
    for name in COMMANDS:
        assert name in listed
        assert load(name).name == name
        assert run(name, "--help").code == 0
        for part in getattr(load(name), "commands", {}):
            assert run(name, part, "--help").code == 0


def test_version(run: Run) -> None:
    """``--version`` tells it and does nothing else."""
    ended = run("--version")
    assert (ended.code, ended.text, ended.err) == (0, f"qdo {qdo.__version__}\n", "")


def test_wrong_usage(run: Run) -> None:
    """An unknown command or option ends with 2 and proposes what may be meant; without a command there is help."""
    ended = run("stats")
    assert (ended.code, "status" in ended.err) == (2, True)
    assert run("status", "--grup", "x").code == 2
    assert "offsets" in run().text + run().err


def test_the_service_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that cannot be reached is one line and 1."""
    monkeypatch.setenv("QUEUEY_URL", f"http://127.0.0.1:{free_port()}")
    ended = run("offsets", "reset", "latest", "--queue", "q", "--group", GROUP)
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)
    assert ended.err.startswith("qdo: ")


def test_what_others_wrote_is_printed_harmlessly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with control characters cannot steer the terminal by way of an error."""
    ended = run("status", "--coordination", "x\x1b[31m:\n")
    assert ended.code == 2
    assert "\x1b" not in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "proposals"),
    [("qdo st", ["status"]), ("qdo offsets s", ["show", "seek"]), ("qdo work --on", ["--on-failure"])],
)
def test_shell_completion(line: str, proposals: list[str]) -> None:
    """The shell gets commands, their parts and their options proposed."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    program = "import sys; sys.argv = ['qdo']; from qdo.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(_QDO_COMPLETE="complete_bash", **words),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == proposals


def test_names_for_the_shell(run: Run, client: Client, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell gets names of queues and groups, and values of closed lists; nothing if nobody answers."""
    client.create_queue("crash-reports")
    group.ask(lambda coordinator: coordinator.set_offsets({group.partition("crash-reports", 1): EARLIEST}), "archive")

    def proposed(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("qdo", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        ended = run()
        assert (ended.code, ended.err) == (0, "")
        return ended.text.split()

    monkeypatch.setenv("_QDO_COMPLETE", "complete_bash")
    assert proposed("work", "--queue", "crash") == ["crash-reports"]
    assert proposed("status", "--group", "ar") == ["archive"]
    assert proposed("work", "--on-failure", "s") == ["skip", "stop"]
    assert proposed("work", "--url", "http://127.0.0.1:9", "--key", "k", "--queue", "c") == []
    assert proposed("status", "--coordination", "no-such:", "--group", "a") == []


@pytest.mark.parametrize("arguments", [["--help"], ["work", "--help"], ["--version"]])
def test_help_stays_light(arguments: list[str]) -> None:
    """Help loads neither an HTTP library nor a driver nor the worker."""
    program = (
        "import sys\nfrom qdo.cli import main\n"
        f"sys.argv = {['qdo', *arguments]!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'httpx2', 'apsw', 'kazoo', 'prometheus_client', 'qdo.worker.worker', 'qdo.consumer.consumer'}\n"
        "heavy &= sys.modules.keys()\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
