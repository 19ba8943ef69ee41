"""A client that several threads use from its first moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIRST_ANSWERS = """
import sys
import types
from threading import Barrier, Thread

from queuey.client.calls.call import HttpAnswer, decode

SHAPES = '''
from __future__ import annotations

import msgspec

class Inner(msgspec.Struct):
    id: str
    created: bool | None = None

class Outer(msgspec.Struct):
    messages: list[Inner]
    more: dict[str, list[Inner]] | None = None
'''

def read():
    barrier.wait(60)
    assert decode(answer, shapes.Outer).messages[0].id == "a"

sys.setswitchinterval(1e-6)
answer = HttpAnswer(200, {}, b'{"messages": [{"id": "a"}]}')
for number in range(50):
    shapes = types.ModuleType(f"shapes{number}")
    sys.modules[shapes.__name__] = shapes
    exec(SHAPES, shapes.__dict__)
    barrier = Barrier(6)
    threads = [Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
"""


@pytest.mark.needs_programs
def test_first_answers_of_a_shape_in_several_threads() -> None:
    """Threads that are the first to read an answer of some shape do not crash the process."""
    root = Path(__file__).parents[3]
    ended = subprocess.run([sys.executable, "-c", FIRST_ANSWERS], cwd=root, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
