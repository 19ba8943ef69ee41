"""The programs of the page about Curator's queues and of the docstrings, run as a reader would run them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import qdo.curator
from tests.pages import Block, examples, runnable_blocks
from tests.qdo.curator.queues.queue_nodes import Nodes

PAGE = "docs/compat/curator.md"
CLASSES = {name: thing for name in qdo.curator.__all__ if inspect.isclass(thing := getattr(qdo.curator, name))}
PROGRAMS: dict[str, list[Block]] = {
    **{part: runnable_blocks(PAGE, below=part, languages={"python"}) for part in ("Put and take", "Leader election")},
    **{name: examples(thing) for name, thing in CLASSES.items() if examples(thing)},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(nodes: Nodes, name: str) -> None:
    """Each program of the page runs, on other servers and another path."""
    assert PROGRAMS[name]
    for program in PROGRAMS[name]:
        text = program.text.replace("127.0.0.1:2181", nodes.hosts).replace('"/queues/', f'"{nodes.path}/')
        assert text != program.text
        names: dict[str, Any] = {}
        exec(compile(text, name, "exec"), names)
