"""The product's files, as the rules of words read them, and what a name in a docstring stands for.

A name is looked up where the docstring stands: in the classes around it, then in the module, in its imports, and among
the builtins. A dotted name may also begin at a package; leading dots stand for the module's package.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

ROOT = Path(__file__).parents[2]
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

    def text_of(self, name: str) -> str:
        """Returns the text of a class."""
        lines = self.text.splitlines()
        return "\n".join(line for x in self.classes if x.name == name for line in lines[x.lineno : x.end_lineno])

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

    def classes_around(self, line: int) -> list[str]:
        """Returns the names of the classes around a line, each with the names of those around it."""
        return [x.name for x in self.classes if x.lineno <= line <= (x.end_lineno or 0)]

    def knows(self, name: str, line: int) -> bool:
        """Returns whether a name in a docstring at a line stands for something."""
        plain = name.lstrip(".")
        if dots := len(name) - len(plain):
            return exists(".".join((*self.above(dots), plain)))
        first, _, rest = plain.partition(".")
        around = self.classes_around(line)
        owners = [".".join((self.module, *around[:count])) for count in range(len(around), -1, -1)]
        imported = ".".join(filter(None, (self.imports.get(first), rest)))
        return any(exists(x) for x in (*(f"{owner}.{plain}" for owner in owners), imported, f"builtins.{plain}", plain))


@cache
def exists(name: str) -> bool:
    """Returns whether a dotted name leads to a module, to something in it, or to an attribute of its instances."""
    owner, _, last = name.rpartition(".")
    if resolve(name) is not None:
        return True
    kinds = getattr(resolve(owner), "__mro__", ())
    texts = [sources()[kind.__module__].text_of(kind.__name__) for kind in kinds if kind.__module__ in sources()]
    return any(re.search(rf"\b{last}\b[^=\n]*(?::|=)", text) for text in texts)


@cache
def resolve(name: str) -> Any:  # noqa: ANN401 - of any type
    """Returns what a dotted name stands for, or None."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return None


def string(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else None
    return None


@cache
def sources() -> dict[str, Source]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {source.module: source for source in map(Source, paths)}
