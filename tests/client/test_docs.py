"""The examples of the client's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.client.live import Served

PAGE = Path(__file__).parent.parent.parent / "docs" / "client.md"


def test_the_examples_run(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of the page runs, in order, against a service that was only started."""
    monkeypatch.setenv("QUEUEY_PROFILE", str(service.profile))
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) >= 10
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
