"""What the documentation says about the command line is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from queuey.cli import COMMANDS, load
from tests.commands import Run

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/cli.md"]


def examples(page: str) -> list[list[str]]:
    """The arguments of every ``queuey`` command in the page's code blocks."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            for part in re.split(r"[|<]", line.partition("#")[0]):
                words = shlex.split(part)
                if words and words[0].rpartition("/")[2] == "queuey":
                    found.append(words[1:])
    return found


def options(command: Any) -> set[str]:  # noqa: ANN401 - a command of typer's
    """Every option that a command has."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES)
def test_examples_use_what_there_is(page: str) -> None:
    """Every command in an example exists and has the options used."""
    assert examples(page)
    for words in examples(page):
        name, *rest = words
        if name.startswith("-"):
            continue
        command = load(name)
        while hasattr(command, "commands"):
            name = rest.pop(0)
            command = command.load(name) if hasattr(command, "load") else command.commands[name]
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used - options(command) - {"--help"} == set(), words


def test_every_command_has_an_example() -> None:
    """The page about the command line shows each command at least once."""
    shown = {words[0] for words in examples("docs/cli.md")}
    assert COMMANDS.keys() - shown == set()
    for group in ("queue", "offsets", "app", "pipeline"):
        parts = {words[1] for words in examples("docs/cli.md") if words[0] == group}
        assert load(group).commands.keys() - parts == set()


def test_quick_start_runs(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands and the program of the README do what they are there for, in their order."""
    monkeypatch.chdir(ROOT)
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    printed = {}
    for words in examples("README.md"):
        needs_cluster = any("cassandra://" in word for word in words)
        # The jobs of the pipeline are run by tests/acceptance/test_demo.py and tests/spark.
        if words[0] not in {"serve", "tail", "pipeline"} and not needs_cluster:
            ended = run(*words)
            assert ended.code == 0, (words, ended.err)
            printed[" ".join(words)] = ended.text
    assert "Amboy, Washington" in printed["read quakes --limit 3"].splitlines()[0]
    exec(compile(program, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1708
    assert lines[-1].endswith("M 6.4 - 22km NNE of Hualian, Taiwan")
