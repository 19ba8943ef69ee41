"""Source checks: what tests may not do, so that the product can change without them, and a run always ends."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {"tests/suite/test_architecture.py", "tests/replacing.py", "tests/model/test_messages.py"}
"""These rules, the helper for replacements and its test, and a test that fields cannot be set."""
PATCHED = re.compile(
    r"(?:\bpatch(?:\.(?:object|multiple|dict))?|\b_*(?:set|del)attr_*)\(\s*(?:type\()?[\"']?(\w+)"
    r"|(?:\bvars\((\w+)[^=\n]*|(\w+)\.__dict__)\[[^]\n]*\] = "
)
OTHERS = sys.stdlib_module_names | {"Thread", "apsw", "patch", "pyspark", "pytest", "request"}
"""First names of what is not the product, and may be replaced by a name in a string."""
CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "uuid1", "now_ticks", "gmtime", "localtime"}
"""Functions that return the time of day."""
STOPWATCHES = {"monotonic", "time", "perf_counter"}
BLOCKING = {"join", "result", "wait", "communicate"}
"""Methods that wait for ever without an argument."""
NOT_BLOCKING = re.compile(r"\bawait\b|create_task|ensure_future|gather|run_coroutine_threadsafe|wait_for|# bounded: ")
"""Coroutines; and a comment that names what else limits a wait."""
LIMITS = {"timeout", "timeout_at", "fail_after", "move_on_after"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_named_by_string(source: str) -> Iterator[int]:
    """Yields the lines in which something of the product is replaced by its name in a string."""
    for match in PATCHED.finditer(source):
        [name] = filter(None, match.groups())
        own = rf"(?m)^class {name}\b|^from (?:bench|tests)\b.* import .*\b{name}\b"
        if name not in OTHERS and not re.search(own, source):
            yield source.count("\n", 0, match.start()) + 1


def find_timed_at_import(source: str) -> Iterator[int]:
    """Yields the lines at the top level, or of decorators, that read the time of day."""
    if not any(f"{clock}(" in source for clock in CLOCKS):
        return
    for statement in ast.parse(source).body:
        evaluated = getattr(statement, "decorator_list", [] if isinstance(statement, ast.If) else [statement])
        yield from (line for node in evaluated for line, name in find_calls(node) if name in CLOCKS)


def find_unlimited(source: str) -> Iterator[int]:
    """Yields the lines of waits without a limit: blocking calls, and loops that sleep and read no clock."""
    if not any(f".{name}()" in source for name in BLOCKING) and "sleep(" not in source:
        return
    lines, nodes = ["", *source.splitlines()], [*ast.walk(ast.parse(source))]
    functions = [node for node in nodes if isinstance(node, Function)]
    coroutines = [range(x.lineno, (x.end_lineno or 0) + 1) for x in functions if isinstance(x, ast.AsyncFunctionDef)]
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords):
            is_task = node.func.attr == "result" and any(node.lineno in span for span in coroutines)
            if node.func.attr in BLOCKING and not NOT_BLOCKING.search(lines[node.lineno]) and not is_task:
                yield node.lineno
    for function in functions:
        names = {name for _, name in find_calls(function)}
        for loop in (node for node in ast.walk(function) if isinstance(node, ast.While) and not names & LIMITS):
            called = {name for _, name in find_calls(loop)}
            if "sleep" in called and not called & STOPWATCHES and "# bounded: " not in lines[loop.lineno]:
                yield loop.lineno


def find_calls(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the last name of each call, except within a lambda."""
    if isinstance(node, ast.Call):
        yield node.lineno, getattr(node.func, "attr", getattr(node.func, "id", ""))
    if not isinstance(node, ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from find_calls(child)


RULES: dict[str, Callable[[str], Iterator[int]]] = {
    "Replace things of the product by a seam, or by tests.replacing, so that renaming is enough": find_named_by_string,
    "Read the time when the test runs: a suite may run for an hour, in several processes": find_timed_at_import,
    "Pass a timeout, or use until() of tests/waiting.py: a wait without a limit blocks the whole run": find_unlimited,
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_tests(rule: str) -> None:
    """No test names a private thing of the product by a string, reads the time at its import, or waits for ever."""
    lines = [
        f"{name}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (name := str(path.relative_to(ROOT))) not in ALLOWED and path.name != "__main__.py"
        for line in RULES[rule](path.read_text("utf-8"))
    ]
    assert not lines, f"{rule}: {', '.join(lines)}"
