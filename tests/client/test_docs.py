"""The examples of the client's page."""

from __future__ import annotations

import pytest

from tests.client.live import Served
from tests.pages import runnable_blocks

PAGE = "docs/client.md"


def test_the_examples_run(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of the page runs, in order, against a service that was only started."""
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile))
    examples = runnable_blocks(PAGE)
    assert len(examples) >= 10
    assert {example.language for example in examples} == {"python"}
    names: dict[str, object] = {}
    for example in examples:
        exec(compile("\n" * (example.line - 1) + example.text, PAGE, "exec"), names)
