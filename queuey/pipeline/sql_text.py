"""Checks of SQL that find mistakes before Spark starts, which takes long."""

from __future__ import annotations

import re
from collections.abc import Iterator

from queuey.spark.errors import OptionError

_TOKEN = re.compile(
    r"""
    [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | --[^\n]* | /\*.*?\*/ | \s+
    | `(?P<quoted>(?:[^`]|``)*)` | (?P<open>['"`]|/\*) | (?P<word>\w+) | (?P<mark>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_FIRST_WORDS = frozenset({"select", "with", "from", "values", "table"})


def check_query(text: str, view: str) -> None:
    """Checks that a text can be one query of a view.

    Raises:
        OptionError: The text does not begin like a query, does not name the view, or is incomplete.
    """
    words = list(_words(text))
    if not words:
        raise OptionError("the SQL is empty: it has to be a SELECT")
    if words[0].lower() not in _FIRST_WORDS:
        raise OptionError(f"the SQL begins with {words[0]!r}: it has to be a SELECT")
    if view not in {word.lower() for word in words}:
        raise OptionError(f"the SQL does not name the view {view}, so it does not read the stream of messages")


def check_condition(text: str) -> None:
    """Checks that a text can be one expression.

    Raises:
        OptionError: The text is empty or incomplete.
    """
    if not list(_words(text)):
        raise OptionError("the condition is empty")


def _words(text: str) -> Iterator[str]:
    """Yields words, and quoted names without their quotes, in order and as written.

    Raises:
        OptionError: A quote, comment or parenthesis is not balanced, or a second statement follows.
    """
    opened: list[int] = []
    ended = False
    for token in _TOKEN.finditer(text):
        if token["open"]:
            raise OptionError(f"{token['open']} in {_quote_around(text, token.start())} is never closed")
        word = token["word"] or token["quoted"]
        if ended and (word or token["mark"] not in {None, ";"}):
            raise OptionError(
                f"there is more after ; in {_quote_around(text, token.start())}: only one statement is allowed"
            )
        if word:
            yield word
        match token["mark"]:
            case "(":
                opened.append(token.start())
            case ")" if not opened:
                raise OptionError(f") in {_quote_around(text, token.start())} closes nothing")
            case ")":
                opened.pop()
            case ";":
                ended = True
    if opened:
        raise OptionError(f"( in {_quote_around(text, opened[-1])} is never closed")


def _quote_around(text: str, index: int) -> str:
    return repr(" ".join(text[max(0, index - 20) : index + 20].split()))
