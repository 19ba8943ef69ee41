"""Source checks: what tests may not do, so that the product can change without them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for directory in ("bench", "tests") for path in sorted((ROOT / directory).rglob("*.py"))]
PRODUCT = {"queuey", "qdo", "deploy"}
ALLOWED = {"tests/replacing.py", "tests/unit/test_messages.py"}
"""The helper for replacements, and a test that fields cannot be set."""
SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__"}
PATCHERS = {"object", "multiple", "dict"}
"""The attributes of ``mock.patch`` that patch, besides the call itself."""


def find_named_by_string(source: str) -> Iterator[int]:
    """Yields the lines in which a part of the product is replaced by its name as a string.

    Everything that is neither imported from elsewhere nor a class of the file counts as a part of the product: fixtures
    and variables mostly hold its objects.
    """
    if not any(word in source for word in (*SETTERS, "patch", "vars", "__dict__")):
        return  # saves parsing most files
    tree = ast.parse(source)
    others = _names_of_others(tree)
    for node in ast.walk(tree):
        target: ast.expr | None = None
        if isinstance(node, ast.Call) and node.args and _is_patching(node.func):
            target = node.args[0]
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = _owner_of_names(node.value)
        if target is not None and _is_product(target, others):
            yield target.lineno


def _names_of_others(tree: ast.AST) -> set[str]:
    """Returns the names that do not stand for a part of the product: classes of the file, imports from elsewhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import):
            names |= {
                alias.asname or _package(alias.name) for alias in node.names if _package(alias.name) not in PRODUCT
            }
        elif isinstance(node, ast.ImportFrom) and _package(node.module or "") not in PRODUCT:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_patching(function: ast.expr) -> bool:
    name = _last_name(function)
    if isinstance(function, ast.Attribute) and function.attr in PATCHERS:
        return _last_name(function.value) == "patch"
    if name == "patch":
        return ast.unparse(function) in {"patch", "mock.patch", "unittest.mock.patch"}
    return name in SETTERS


def _last_name(node: ast.expr) -> str | None:
    """Returns the last name of an expression: ``b`` of ``a.b``; None if it has none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _owner_of_names(node: ast.expr) -> ast.expr | None:
    """Returns ``x`` of ``vars(x)`` and ``x.__dict__``."""
    if isinstance(node, ast.Call) and node.args and _last_name(node.func) == "vars":
        return node.args[0]
    return node.value if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None


def _is_product(target: ast.expr, others: set[str]) -> bool:
    """Returns whether an expression stands for a part of the product, by a text in it or by its first name."""
    texts = [one.value for one in ast.walk(target) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if any(_package(text) in PRODUCT for text in texts):
        return True
    if isinstance(target, ast.Constant | ast.JoinedStr):
        return False
    return _first_name(target) not in others


def _first_name(node: ast.expr) -> str | None:
    """Returns the name at the start of an expression: ``a`` of ``a.b[c].d()``, and of ``type(a)``."""
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            built_in = isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id)
            node = node.args[0] if built_in and node.args else node.func
        else:
            return _last_name(node)


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(fences, "KEPT", 5)',
        'monkeypatch.setattr("queuey.storage.PREPARED", ())',
        'monkeypatch.setattr(type(store._clock), "both", later)',
        'monkeypatch.setattr(store, "_wait", later)',
        'monkeypatch.delattr(store._driver, "run")',
        'patch.setattr(Place, "minted", property(later))',
        'patch.setattr(sys.modules["qdo.workers"], "wait", later)',
        "for name in NAMES: setattr(driver, name, getattr(wire, name))",
        'object.__setattr__(store._options, "reap_interval", 0.05)',
        'vars(store)["_closing"] = Waiting()',
        'store.__dict__["_closing"] = Waiting()',
        'with mock.patch.object(fences, "KEPT", 5): pass',
        'with mock.patch("qdo.workers.wait"): pass',
        '@patch("queuey.storage.wait")\ndef test(): pass',
        'with patch.multiple("queuey.storage", wait=later): pass',
        'monkeypatch.setattr(renamed, "wait", later)',
    ],
)
def test_it_is_found(line: str) -> None:
    """Each way to replace a part of the product by a string is found, however the part is reached."""
    imports = (
        "import sys\nfrom unittest import mock\nfrom queuey.storage.cassandra import fences\nimport qdo.a as renamed\n"
    )
    assert list(find_named_by_string(imports + line)) == [imports.count("\n") + 1]


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(sys, "argv", [])',
        'monkeypatch.setattr(time.time, "x", later)',
        'monkeypatch.setattr("os.getpid", later)',
        'monkeypatch.setattr(commands, "RUN", later)',
        'monkeypatch.setattr(Own, "run", later)',
        'monkeypatch.setenv("QUEUEY_STORE", "x")',
        'with mock.patch("socket.socket"): pass',
        "with replace(Writer._end_batch, later): pass",
        "store._closing = Waiting()",
        'found["name"] = 5',
        "requests.patch(url, json={})",
    ],
)
def test_the_rest_is_not(line: str) -> None:
    """Parts of others may be replaced by a string, and parts of the product by themselves."""
    imports = "import sys, time, requests\nfrom unittest import mock\nfrom tests import commands\nclass Own: ...\n"
    assert list(find_named_by_string(imports + line)) == []


def test_no_test_names_a_private_part_of_the_product_by_string() -> None:
    """A test replaces parts of the product by a seam or by ``tests.replacing``, so that renaming a part is enough."""
    lines = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if str(path.relative_to(ROOT)) not in ALLOWED
        for line in find_named_by_string(path.read_text("utf-8"))
    ]
    assert not lines, f"use a seam, or tests.replacing: {', '.join(lines)}"


CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "uuid1", "now_ticks", "gmtime", "localtime"}
"""Functions that return the time of day. Clocks with an arbitrary origin are not in the list."""


def find_timed_at_import(source: str) -> Iterator[int]:
    """Yields the lines in which a file reads the time during its import: at top level, in a class or in a decorator.

    A function of the same file that is called there is searched as well.
    """
    if not any(f"{clock}(" in source for clock in CLOCKS):
        return
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in _evaluated_with(tree):
        if isinstance(node, ast.Call):
            function = functions.get(node.func.id) if isinstance(node.func, ast.Name) else None
            within = [] if function is None else [inner for part in function.body for inner in ast.walk(part)]
            if any(isinstance(inner, ast.Call) and _last_name(inner.func) in CLOCKS for inner in [node, *within]):
                yield node.lineno


def _evaluated_with(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes evaluated with a node: all but bodies of functions and of ``if __name__`` blocks."""
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return
    yield node
    later = node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else []
    for child in ast.iter_child_nodes(node):
        if child is not later and child not in (later if isinstance(later, list) else []):
            yield from _evaluated_with(child)


@pytest.mark.parametrize(
    "lines",
    [
        "NOW = time.time()",
        "class Sample:\n    at = datetime.now(UTC)",
        '@pytest.mark.parametrize("until", [time.time() + 60])\ndef test_it(until): ...',
        "def test_it(until=uuid.uuid1()): ...",
        "def token(): return sign(time.time())\nVALID = [token()]",
        "START = ids.now_ticks()",
    ],
)
def test_the_time_of_an_import_is_found(lines: str) -> None:
    """Each way to read the time before a test runs is found."""
    assert list(find_timed_at_import(lines))


@pytest.mark.parametrize(
    "lines",
    [
        "def test_it():\n    assert time.time()",
        "later = lambda: time.time()",
        "class Sample:\n    def at(self): return datetime.now(UTC)",
        "def token(): return sign(time.time())\ndef test_it(): token()",
        "FIRST = time.monotonic()",
        "CLOCK = time.time",
        "if __name__ == '__main__':\n    print(time.time())",
    ],
)
def test_the_time_of_a_test_is_not(lines: str) -> None:
    """A test may read the time when it runs, and any code may read clocks that do not show the time of day."""
    assert list(find_timed_at_import(lines)) == []


def test_no_test_is_made_of_the_time_of_its_import() -> None:
    """Tests do not depend on the time of their import: a suite may run for an hour, in several processes."""
    lines = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line in find_timed_at_import(path.read_text("utf-8"))
        if path.name != "__main__.py"
    ]
    assert not lines, f"ask for the time when the test runs: {', '.join(lines)}"
