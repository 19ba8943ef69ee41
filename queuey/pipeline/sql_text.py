"""Mistakes in SQL that can be found before Spark, which starts slowly, reads it."""

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
_BEGINNINGS = frozenset({"select", "with", "from", "values", "table"})


def check_query(text: str, view: str) -> None:
    """Refuses what cannot be one query of a view.

    Raises:
        OptionError: It begins with another word, does not name the view, or is cut off.
    """
    words = list(_words(text))
    if not words:
        raise OptionError("the SQL is empty: it has to be a SELECT")
    if words[0].lower() not in _BEGINNINGS:
        raise OptionError(f"the SQL begins with {words[0]!r}: it has to be a SELECT")
    if view not in {word.lower() for word in words}:
        raise OptionError(f"the SQL does not name the view {view}, so it has nothing to do with the stream of messages")


def check_condition(text: str) -> None:
    """Refuses what cannot be one expression.

    Raises:
        OptionError: It is empty or cut off.
    """
    if not list(_words(text)):
        raise OptionError("the condition is empty")


def _words(text: str) -> Iterator[str]:
    """Returns words and names in their order.

    Raises:
        OptionError: A quote, a comment or a parenthesis has no end or no beginning, or a second statement follows.
    """
    opened: list[int] = []
    ended = False
    for found in _TOKEN.finditer(text):
        if found["open"]:
            raise OptionError(f"{found['open']} in {_near(text, found.start())} is never closed")
        word = found["word"] or found["quoted"]
        if ended and (word or found["mark"] not in {None, ";"}):
            raise OptionError(f"there is more after ; in {_near(text, found.start())}: one statement is enough")
        if word:
            yield word
        match found["mark"]:
            case "(":
                opened.append(found.start())
            case ")" if not opened:
                raise OptionError(f") in {_near(text, found.start())} closes nothing")
            case ")":
                opened.pop()
            case ";":
                ended = True
    if opened:
        raise OptionError(f"( in {_near(text, opened[-1])} is never closed")


def _near(text: str, place: int) -> str:
    return repr(" ".join(text[max(0, place - 20) : place + 20].split()))
