"""Help fits a terminal, and shells complete what can be completed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import qdo.cli
import queuey.cli
from queuey.client import Client
from queuey.terminal.commands import MAX_TOP_OPTIONS
from tests.commands import Run

WIDTH = 80


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - commands of typer's
    yield name, command
    for below in getattr(command, "commands", ()):
        subcommand = command.load(below) if hasattr(command, "load") else command.commands[below]
        yield from commands(f"{name} {below}", subcommand)


ALL = dict(
    each
    for program, module in (("queuey", queuey.cli), ("qdo", qdo.cli))
    for name in module.COMMANDS
    for each in commands(f"{program} {name}", module.load(name))
)


@pytest.mark.parametrize("name", ALL)
def test_help_fits(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On 80 columns nothing is cut off, no docstring's double backticks stay, and ten options at most come first."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    command = ALL[name]
    with command.make_context(name, [], resilient_parsing=True) as context:
        command.get_help(context)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > WIDTH or "…" in line or "``" in line] == []
    options = [each for each in command.params if each.param_type_name == "option" and each.rich_help_panel is None]
    assert len(options) <= MAX_TOP_OPTIONS


@pytest.fixture
def complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a function
    """Returns bash's completions after some words, the last one incomplete; the program must succeed."""

    def offered(*words: str) -> list[str]:
        with monkeypatch.context() as patched:
            patched.setenv("_QUEUEY_COMPLETE", "complete_bash")
            patched.setenv("COMP_WORDS", " ".join(("queuey", *words)))
            patched.setenv("COMP_CWORD", str(len(words)))
            ended = run()
        assert (ended.code, ended.err) == (0, "")
        return ended.text.split()

    return offered


def test_commands_and_closed_values(complete: Any) -> None:  # noqa: ANN401
    """Names of commands, options and values of closed lists are offered."""
    assert complete("que") == ["queue"]
    assert complete("queue", "cr") == ["create"]
    assert complete("queue", "create", "x", "--max-c") == ["--max-claimed", "--max-claimed-per-key"]
    assert complete("queue", "create", "x", "--kind", "") == ["plain", "dedup", "ordered"]
    assert complete("schedule", "put", "x", "--missed", "c") == ["catch_up"]
    assert complete("serve", "--log-level", "w") == ["warning"]
    assert complete("serve", "--console", "") == ["auto", "on", "off"]


def test_names_of_queues_and_groups(complete: Any, client: Client, queue: str) -> None:  # noqa: ANN401
    """Queues are offered by their beginnings, and the groups of the queue that is named; nothing that a shell runs."""
    client.create_queue("fruit-pears")
    client.create_queue("fruit-plums")
    client.create_queue("fruit-p$(touch x)")
    client.create_queue("fruit-p`touch x`")
    assert complete("read", "fruit-p") == ["fruit-pears", "fruit-plums"]
    assert complete("queue", "move", "fruit-pears", "fruit-pl") == ["fruit-plums"]
    assert complete("claim", "fruit-pears", "--then", "fruit-pl") == ["fruit-plums"]
    client.commit(queue, "billing", {1: client.send(queue, "x", partition=1)})
    assert complete("offsets", "show", queue, "") == ["billing"]


def test_nobody_answers(complete: Any) -> None:  # noqa: ANN401
    """Without a service nothing is offered, and nothing is printed."""
    assert complete("read", "--url", "http://127.0.0.1:9", "--key", "k", "f") == []
    assert complete("offsets", "show", "no-such", "") == []
