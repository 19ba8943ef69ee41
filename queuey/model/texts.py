"""Texts for a terminal: without control characters, with counts and hints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

# Control characters, line and paragraph separators, characters that change the writing direction, invisible characters,
# and lone surrogates. The two joiners (U+200C, U+200D) stay, because some scripts and emoji need them.
_UNSAFE_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff"
)
_UNSAFE_IN_LINE = re.compile(f"[\t\n{_UNSAFE_CHARACTERS}]")
UNSAFE_IN_TEXT = re.compile(f"[{_UNSAFE_CHARACTERS}]")


def printable(text: str) -> str:
    return _UNSAFE_IN_LINE.sub(escape, text)


def shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def format_count(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def did_you_mean(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Returns the end of a sentence about unknown names: a hint at similar ones, or a full stop."""
    names = list(known)
    close = sorted({name for word in unknown for name in get_close_matches(word, names)})
    return f"; did you mean {' or '.join(close)}?" if close else "."


def escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def escape_json(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code <= 0xFFFF:  # noqa: PLR2004 - the Basic Multilingual Plane
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
