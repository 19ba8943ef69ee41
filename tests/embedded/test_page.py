"""The page about embedded services, run as a reader would run it."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from queuey import embedded
from tests.pages import ROOT, runnable_blocks

PAGE = "docs/embedded.md"


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The programs of the page run one after another."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "shown"}
    for block in runnable_blocks(PAGE):
        exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / PAGE), "exec"), names)
    assert capsys.readouterr().out == "hello\nhello Ann\n"
    assert (tmp_path / "jobs.db").is_file()


@pytest.mark.parametrize("name", embedded.__all__)
def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The example of each function prints what it shows."""
    monkeypatch.chdir(tmp_path)
    [example] = doctest.DocTestFinder().find(getattr(embedded, name), name)
    assert example.examples
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0
