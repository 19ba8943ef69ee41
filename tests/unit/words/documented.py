"""Finds what a name in a docstring of the product stands for, in the source alone: our modules are not imported for it.

A name is looked up where the docstring stands: in the classes around it and their bases, then in the module, in its
imports, and among the builtins. A dotted name may also begin at a package; leading dots stand for the module's package.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar, cast

ROOT = Path(__file__).parents[3]
PACKAGES = ("queuey", "qdo")
Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """A file of the product."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self._nodes: dict[type[ast.AST], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            self._nodes.setdefault(type(node), []).append(node)
        self.package = path.parent.relative_to(ROOT).parts
        self.module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    def nodes(self, *types: type[Node]) -> list[Node]:
        return cast("list[Node]", [node for kind in types for node in self._nodes.get(kind, ())])

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"

    @cached_property
    def docstrings(self) -> list[tuple[int, str]]:
        """Docstrings, and the strings below constants and fields, each with its line."""
        bodies = [x.body for x in (self.tree, *self.classes, *self.functions)]
        return [(x.lineno, text) for body in bodies for x in body if (text := string(x)) is not None]

    @cached_property
    def strings(self) -> list[tuple[int, str]]:
        """All other strings, pieces of formatted ones included."""
        documented = {line for line, _ in self.docstrings}
        constants = [x for x in self.nodes(ast.Constant) if x.lineno not in documented]
        return [(x.lineno, x.value) for x in constants if isinstance(x.value, str)]

    @cached_property
    def bindings(self) -> list[tuple[int, str]]:
        """Names where they are bound, outside comprehensions: functions, classes, arguments, variables, attributes."""
        short_lived = {id(x) for loop in self.nodes(ast.comprehension) for x in ast.walk(loop.target)}
        variables = [x for x in self.nodes(ast.Name) if isinstance(x.ctx, ast.Store) and id(x) not in short_lived]
        attributes = [x for x in self.nodes(ast.Attribute) if isinstance(x.ctx, ast.Store)]
        return [
            *((x.lineno, x.name) for x in (*self.classes, *self.functions)),
            *((x.lineno, x.arg) for x in self.nodes(ast.arg)),
            *((x.lineno, x.id) for x in variables),
            *((x.lineno, x.attr) for x in attributes),
        ]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """Its classes; a class comes before those in it."""
        return self.nodes(ast.ClassDef)

    @property
    def functions(self) -> list[Function]:
        return [*self.nodes(ast.FunctionDef), *self.nodes(ast.AsyncFunctionDef)]

    @cached_property
    def imports(self) -> dict[str, str]:
        targets: dict[str, str] = {}
        for alias in (x for node in self.nodes(ast.Import) for x in node.names):
            top = alias.name.partition(".")[0]
            targets[alias.asname or top] = alias.name if alias.asname else top
        for node in self.nodes(ast.ImportFrom):
            module = [*self.above(node.level), *([node.module] if node.module else [])]
            targets |= {x.asname or x.name: ".".join([*module, x.name]) for x in node.names}
        return targets

    def above(self, dots: int) -> Sequence[str]:
        return self.package[: len(self.package) + 1 - dots] if dots else ()

    def target(self, name: str, line: int) -> object:
        """Returns what a name in a docstring at a line stands for; None if there is nothing of that name."""
        plain = name.lstrip(".")
        if dots := len(name) - len(plain):
            return absolute(".".join((*self.above(dots), plain)))
        first, *rest = plain.split(".")
        around = [Place(self, x) for x in reversed(self.classes) if x.lineno <= line <= (x.end_lineno or 0)]
        for place in (*around, _module(self.module)):
            if (start := _member(place, first)) is not None:
                return _follow(start, rest)
        return _follow(getattr(builtins, first), rest) if hasattr(builtins, first) else absolute(plain)


def string(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else None
    return None


@cache
def sources() -> dict[str, Source]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {source.module: source for source in map(Source, paths)}


def forget() -> None:
    for function in (sources, absolute, _module):
        function.cache_clear()


class Place:
    """A module or a class: something that has members."""

    def __init__(self, source: Source, node: ast.Module | ast.ClassDef) -> None:
        self.source = source
        self.node = node

    @cached_property
    def members(self) -> dict[str, ast.stmt]:
        bound: dict[str, ast.stmt] = {}
        for statement in _statements(self.node.body):
            bound |= dict.fromkeys(_bound(statement), statement)
            if isinstance(self.node, ast.ClassDef) and isinstance(statement, Function):
                bound = dict.fromkeys(_attributes_set(statement), statement) | bound
        return bound

    def bases(self) -> Iterator[object]:
        if isinstance(self.node, ast.ClassDef):
            for base in self.node.bases:
                plain = base.value if isinstance(base, ast.Subscript) else base
                yield self.source.target(ast.unparse(plain), self.node.lineno - 1)


@cache
def _module(name: str) -> Place:
    return Place(sources()[name], sources()[name].tree)


@cache
def absolute(name: str) -> object:
    """Returns what a dotted name means: from the sources if they have the module, else imported; None if unknown."""
    parts = name.split(".")
    starts = [(".".join(parts[:length]), parts[length:]) for length in range(len(parts), 0, -1)]
    for module, rest in starts:
        if module in sources():
            return _follow(_module(module), rest)
    for module, rest in starts if parts[0] not in PACKAGES else []:
        try:
            return _follow(importlib.import_module(module), rest)
        except ImportError:
            continue
    return None


def _follow(start: object, names: Sequence[str]) -> object:
    for name in names:
        start = _member(start, name)
    return start


def _member(owner: object, name: str) -> object:
    if not isinstance(owner, Place):
        return None if isinstance(owner, ast.AST) else getattr(owner, name, None)
    if (node := owner.members.get(name)) is not None:
        return Place(owner.source, node) if isinstance(node, ast.ClassDef) else node
    if isinstance(owner.node, ast.ClassDef):
        return next((found for base in owner.bases() if (found := _member(base, name)) is not None), None)
    if name in owner.source.imports:
        return absolute(owner.source.imports[name])
    submodule = f"{owner.source.module}.{name}"
    return _module(submodule) if submodule in sources() else None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Gives statements and those in their branches, but not those in functions and classes."""
    for statement in body:
        yield statement
        if not isinstance(statement, Function | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, name, ()))


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, Function | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _attributes_set(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
