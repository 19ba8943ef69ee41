"""Turns the few marks of reStructuredText that docstrings have into Markdown, for the reference on the site.

Google's sections are read by mkdocstrings itself. What is left is the name of a class or function with its role, a
block of code after two colons, and examples as the interpreter shows them.
"""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import griffe

ROLE = re.compile(r":(?:py:)?[a-z]+:`~?(?:[\w.]+\.)?([\w()]+)`")
BLOCK = re.compile(r"(?m)^(.*?)(:?):\n\n((?: {4}.*(?:\n|$)|\n)+)")
EXAMPLE = re.compile(r"(?m)^Example:\n(?=\s+>>> )")


def to_markdown(text: str) -> str:
    r"""Returns a docstring with Markdown for roles, for blocks of code after two colons, and for examples.

    >>> to_markdown("See :class:`~queuey.client.Client`::\n\n    Client()\n")
    'See `Client`:\n\n```python\nClient()\n```\n'
    >>> to_markdown("Example:\n    >>> 1 + 1\n    2\n")
    'Examples:\n    >>> 1 + 1\n    2\n'
    """

    def block(match: re.Match[str]) -> str:
        before, second, code = match.groups()
        if not second:
            return match[0]
        lead = f"{before}:\n\n" if before else ""
        return f"{lead}```python\n{dedent(code).strip()}\n```\n"

    return BLOCK.sub(block, ROLE.sub(r"`\1`", EXAMPLE.sub("Examples:\n", text)))


def strip_annotated(annotation: griffe.Expr | str | None) -> griffe.Expr | str | None:
    if not isinstance(annotation, griffe.ExprSubscript) or str(annotation.left) != "Annotated":
        return annotation
    inner = annotation.slice
    return strip_annotated(inner.elements[0]) if isinstance(inner, griffe.ExprTuple) else inner


class Markdown(griffe.Extension):
    """Rewrites each docstring when griffe has read it, and each annotation of a field."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 -- as griffe calls it
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
        if isinstance(obj, griffe.Attribute):
            obj.annotation = strip_annotated(obj.annotation)
