"""Counts the code lines of Python files: without docstrings, comments and blank lines.

Only modules, classes and functions have docstrings here; a string below a constant or an attribute counts as code.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.started.processes import ROOT

PRODUCT = ("queuey", "qdo")
OTHERS = ("bench", "deploy", "tests")
NON_CODE_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count_code_lines(source: str) -> int:
    """Returns the number of lines with a token of code; a string of several lines counts each of them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NON_CODE_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines.difference(*_docstrings(source)))


def _docstrings(source: str) -> Iterator[range]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as text, *_]:
                    yield range(text.lineno, (text.end_lineno or text.lineno) + 1)


def count_lines_by_package(root: Path = ROOT) -> dict[str, int]:
    """Returns the code lines of each package of the product, and of each other top directory as a whole."""
    lines: Counter[str] = Counter()
    for name in (*PRODUCT, *OTHERS):
        for path in sorted((root / name).rglob("*.py")):
            package = path.relative_to(root).parent.parts[: 2 if name in PRODUCT else 1]
            lines["/".join(package)] += count_code_lines(path.read_text("utf-8"))
    return dict(lines)
