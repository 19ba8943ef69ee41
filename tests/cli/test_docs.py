"""What the documentation says about the command line is true."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import pytest

from queuey.cli import COMMANDS, load
from tests.commands import Run
from tests.pages import ROOT, Block, blocks, runnable_blocks

PAGES = ["README.md", "docs/cli.md"]


def queuey_commands(some: Iterable[Block]) -> list[list[str]]:
    commands = []
    for block in (block for block in some if block.language == "sh"):
        for line in block.text.splitlines():
            for piece in re.split(r"[|<]", line.partition("#")[0]):
                words = shlex.split(piece)
                if words and words[0].rpartition("/")[2] == "queuey":
                    commands.append(words[1:])
    return commands


def test_every_command_has_an_example() -> None:
    """The page about the command line shows each command at least once."""
    lines = queuey_commands(blocks("docs/cli.md"))
    shown = {words[0] for words in lines}
    assert COMMANDS.keys() - shown == set()
    for group in ("queue", "offsets", "app", "pipeline"):
        parts = {words[1] for words in lines if words[0] == group}
        assert load(group).commands.keys() - parts == set()


def test_quick_start_runs(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands and the program of the README do what they say, in order."""
    monkeypatch.chdir(ROOT)
    (program,) = (block.text for block in runnable_blocks("README.md") if block.language == "python")
    printed = {}
    for words in queuey_commands(runnable_blocks("README.md")):
        if words[0] != "tail":  # never ends
            ended = run(*words)
            assert ended.code == 0, (words, ended.err)
            printed[" ".join(words)] = ended.text
    assert "Amboy, Washington" in printed["read quakes --limit 3"].splitlines()[0]
    exec(compile(program, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:2]] == ["hello", "world"]
    assert sorted(lines[2:]) == ["claimed and done: hello", "claimed and done: world"]
