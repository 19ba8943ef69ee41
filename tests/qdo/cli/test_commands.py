"""The ``qdo`` program: its list of commands, its version, wrong usage and failures."""

from __future__ import annotations

import pytest

from queuey.client import EARLIEST, Client
from tests.commands import Run, simulated_pauses
from tests.qdo.cli.conftest import GROUP, Group
from tests.servers.served import free_port


def test_the_service_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that cannot be reached for half a minute gives a line for each long pause, an error, and code 1."""
    monkeypatch.setenv("QUEUEY_URL", f"http://127.0.0.1:{free_port()}")
    with simulated_pauses() as slept:
        ended = run("offsets", "reset", "latest", "--queue", "q", "--group", GROUP)
    *notes, error = ended.err.splitlines()
    assert (ended.code, 28 <= sum(slept) <= 30, len(notes)) == (1, True, sum(pause >= 1 for pause in slept))
    assert all(note.startswith("The request failed. Retrying in ") for note in notes)
    assert error.startswith("qdo: ")


def test_what_others_wrote_is_printed_harmlessly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters in names cannot steer the terminal through an error."""
    ended = run("status", "--coordination", "x\x1b[31m:\n")
    assert ended.code == 2
    assert "\x1b" not in ended.err
    assert len(ended.err.splitlines()) == 1


def test_names_for_the_shell(run: Run, client: Client, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell completes queues, groups and closed lists of values; without an answer it completes nothing."""
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


def test_servers_that_do_not_answer(run: Run) -> None:
    """ZooKeeper servers that cannot be reached give one line and code 1."""
    ended = run("status", "--coordination", f"zookeeper://127.0.0.1:{free_port()}/x?connect_timeout=0.5")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
