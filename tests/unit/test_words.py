"""The rules of docs and names that a program can check: see "Words" in CONTRIBUTING.md."""

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("queuey", "qdo")
RIDDLES = frozenset({"What", "Whether", "Says", "Is", "Has", "Lets", "Takes"})
MAYBE = re.compile(rf"#[#: ]*(?:{'|'.join(sorted(RIDDLES))})\b")
"""To read every file token by token takes seconds."""
MEASURES = ("Max ", "Min ", "Interval ", "Timeout ", "Default ", "Number ", "Ratio ", "Cost ", "Code ", "Version ")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    path: Path
    text: str
    tree: ast.Module

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@cache
def sources() -> list[Source]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [Source(path, text := path.read_text(), ast.parse(text)) for path in paths]


def docstrings(source: Source) -> Iterator[tuple[int, str]]:
    """Docstrings, and the strings below constants and fields, each with its line."""
    for node in ast.walk(source.tree):
        if isinstance(node, Documented):
            for statement in node.body:
                if (text := string(statement)) is not None:
                    yield statement.lineno, text


def string(statement: ast.stmt) -> str | None:
    """A statement that is nothing but a string."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value if isinstance(statement.value.value, str) else None
    return None


def comments(source: Source) -> Iterator[tuple[int, str]]:
    """The first line of each block of comments, of a file in which one may begin with a riddle."""
    if not MAYBE.search(source.text):
        return
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1:
                yield line, token.string.lstrip("#: ")
            last = line


def first_word(text: str) -> str:
    return re.split(r"[^\w]", text.strip(), maxsplit=1)[0]


def test_no_riddles() -> None:
    """No docstring or comment begins with a relative clause or with a verb that hides its subject."""
    found = [
        f"{source.at(line)}: {text.strip()[:80]!r}"
        for source in sources()
        for line, text in itertools.chain(docstrings(source), comments(source))
        if first_word(text) in RIDDLES
    ]
    assert not found, "\n".join([f"{len(found)} begin with one of {sorted(RIDDLES)}:", *found])


def constants(source: Source) -> Iterator[tuple[int, str, str]]:
    """Numbers in capitals with the string below them: line, name, string."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Module | ast.ClassDef):
            continue
        for one, below in itertools.pairwise(node.body):
            if not isinstance(one, ast.Assign | ast.AnnAssign) or not is_number(one.value):
                continue
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            if isinstance(target, ast.Name) and target.id.isupper() and (text := string(below)) is not None:
                yield one.lineno, target.id, text


def is_number(value: ast.expr | None) -> bool:
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.Name):
        return value.id.isupper()
    return isinstance(value, ast.Constant) and type(value.value) in {int, float}


def test_constants_begin_with_their_measure() -> None:
    """A reader of a number sees first whether it is a bound, an interval or a timeout."""
    found = [
        f"{source.at(line)}: {name}: {text.strip()[:80]!r}"
        for source in sources()
        for line, name, text in constants(source)
        if not text.startswith(MEASURES)
    ]
    assert not found, "\n".join([f"{len(found)} begin with none of {MEASURES}:", *found])


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def base_classes(one: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Classes of ours from which this one derives, near and far, where a name stands for one class only."""
    for base in one.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        name = plain.id if isinstance(plain, ast.Name) else plain.attr if isinstance(plain, ast.Attribute) else ""
        candidates = classes().get(name, [])
        if len(candidates) == 1 and candidates[0] is not one:
            yield candidates[0]
            yield from base_classes(candidates[0])


def functions(one: ast.ClassDef) -> dict[str, Function]:
    return {node.name: node for node in one.body if isinstance(node, Function)}


def test_overrides_have_no_docstring() -> None:
    """What a method does stands where it is declared first."""
    found = [
        f"{source.at(function.lineno)}: {one.name}.{name}"
        for source in sources()
        for one in ast.walk(source.tree)
        if isinstance(one, ast.ClassDef)
        for name, function in functions(one).items()
        if ast.get_docstring(function) is not None
        and not name.startswith("__")
        and any(name in functions(base) for base in base_classes(one))
    ]
    assert not found, "\n".join([f"{len(found)} overrides have a docstring:", *found])


@pytest.mark.parametrize("text", ["What is kept.", "Whether it is.", "Is one."])
def test_riddles_are_seen(text: str) -> None:
    assert first_word(text) in RIDDLES
