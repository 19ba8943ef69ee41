"""No test waits without a limit."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.waiting import until, until_async

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "tests").rglob("*.py"))
CLOCKS = {"monotonic", "time", "perf_counter"}
BLOCKING = {"join", "result", "wait", "communicate"}
"""Methods of threads, futures, events, conditions and processes that wait for ever without an argument."""
LIMITS = {"timeout", "timeout_at", "fail_after", "move_on_after"}
"""Context managers that limit everything in their block."""
STARTERS = {"create_task", "ensure_future", "gather", "run_coroutine_threadsafe", "wait_for"}
"""Functions that run a given coroutine. The limit is where its end is awaited."""
BOUNDED = "# bounded: "
"""A comment at a wait that is limited by something else, which it names."""


def find_unlimited(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line of each wait without a limit, and a description; lines with :data:`BOUNDED` are exempt.

    Two forms are found: a call without arguments of a method in :data:`BLOCKING`, unless it makes a coroutine; and a
    ``while`` around a ``sleep`` that neither reads a clock nor is in a block with a limit.
    """
    if not any(f".{word}()" in source for word in BLOCKING) and "sleep(" not in source:
        return  # saves parsing most files
    lines = source.splitlines()
    for node, ancestors in _walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _waits(node, ancestors):
            words = f".{_name(node.func)}() without a timeout"
        elif isinstance(node, ast.While) and _polls(node, ancestors):
            words = "while around a sleep, without a deadline"
        else:
            continue
        if BOUNDED not in lines[node.lineno - 1]:
            yield node.lineno, words


def _waits(call: ast.Call, ancestors: Sequence[ast.AST]) -> bool:
    """Returns whether it is a blocking call without a timeout; coroutines and results of tasks do not count."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in BLOCKING or call.args or call.keywords:
        return False
    parent, function = ancestors[-1], _function(ancestors)
    coroutine = isinstance(parent, ast.Await) or (isinstance(parent, ast.Call) and _name(parent.func) in STARTERS)
    task = call.func.attr == "result" and isinstance(function, ast.AsyncFunctionDef)
    return not coroutine and not task


def _polls(loop: ast.While, ancestors: Sequence[ast.AST]) -> bool:
    """Returns whether a loop sleeps with neither a look at a clock nor a limit around it."""
    limited = any(isinstance(each, ast.AsyncWith) and _find_called(*each.items) & LIMITS for each in ancestors)
    return "sleep" in _find_called(loop) and not _find_called(loop) & CLOCKS and not limited


def _walk(node: ast.AST, ancestors: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    within = (*ancestors, node)
    for child in ast.iter_child_nodes(node):
        yield child, within
        yield from _walk(child, within)


def _function(ancestors: Sequence[ast.AST]) -> ast.AST | None:
    functions = [each for each in ancestors if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    return functions[-1] if functions else None


def _find_called(*nodes: ast.AST) -> set[str]:
    return {_name(each.func) for node in nodes for each in ast.walk(node) if isinstance(each, ast.Call)}


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("thread.join()", [1]),
        ("future.result()", [1]),
        ("event.wait()", [1]),
        ("process.communicate()", [1]),
        ("while not done():\n    sleep(1)", [1]),
        ("while not done():\n    await asyncio.sleep(1)", [1]),
        ("thread.join(5)", []),
        ("','.join(words)", []),
        ("future.result(timeout=5)", []),
        ("async def test():\n    await event.wait()", []),
        ("await asyncio.wait_for(event.wait(), 5)", []),
        ("async def test():\n    task.result()", []),
        ("async def test():\n    def later():\n        future.result()", [3]),
        ("future.result()  # bounded: it has ended", []),
        ("async with asyncio.timeout(5):\n    while not done():\n        await asyncio.sleep(1)", []),
        ("async with client:\n    while not done():\n        await asyncio.sleep(1)", [2]),
        ("while time.monotonic() < deadline:\n    sleep(1)", []),
        ("while True:\n    work()", []),
    ],
)
def test_a_wait_without_a_limit_is_found(source: str, found: list[int]) -> None:
    """Each form is found in its line; a wait with a limit is not."""
    assert [line for line, _ in find_unlimited(source)] == found


def test_no_test_waits_without_a_limit() -> None:
    """No test waits without a limit, which could block the whole run."""
    waits = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in SOURCES
        if path != Path(__file__)
        for line, words in find_unlimited(path.read_text())
    ]
    assert not waits, "Pass a timeout, or use until() of tests/waiting.py:\n" + "\n".join(waits)


@pytest.mark.needs_programs
def test_a_wait_is_over_when_its_process_has_ended() -> None:
    """A wait for a process fails as soon as the process has ended, and reports the exit code."""
    began = time.monotonic()
    with (
        subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process,
        pytest.raises(AssertionError, match="ended with 3"),
    ):
        until(lambda: False, 300, process=process)
    assert time.monotonic() - began < 200


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_wait_has_a_limit(anyio_backend: str) -> None:
    """A condition that stays false fails at the limit; one that becomes true ends the wait; coroutines are awaited."""
    with pytest.raises(AssertionError, match=r"after 0\.02 s"):
        until(lambda: False, 0.02)
    with pytest.raises(AssertionError, match=r"after 0\.02 s"):
        await until_async(lambda: False, 0.02)
    answers = iter([False, False, True])

    async def answer() -> bool:
        return next(answers)

    await until_async(answer)
    assert list(answers) == []
