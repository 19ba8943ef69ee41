"""Bodies for people: indented JSON, text, or bytes as hex. All of it is untrusted text."""

from __future__ import annotations

import re

import msgspec

from queuey.messages import Message, body_bytes

MAX_SHOWN = 64 * 1024
"""Max characters of a body on a page."""
MAX_HEX = 4096
"""Max bytes of a hex dump."""
MAX_DEPTH = 32
"""Max depth of JSON that is indented: deeper, the page would be mostly indents."""
MAX_PREVIEW = 120
"""Max characters of a body in a list."""
_LINE = 16
_NOT_PRINTABLE = re.compile(r"[^ -~]")
_BRACKETS = re.compile(r"[\[\]{}]")


class Shown(msgspec.Struct, frozen=True):
    """A body for a page.

    Attributes:
        kind: ``JSON``, ``text`` or ``bytes``.
        text: What the page shows.
        size: Bytes of the whole body.
        is_cut: The page does not show all of it.
    """

    kind: str
    text: str
    size: int
    is_cut: bool


def shown(body: str | bytes) -> Shown:
    size = body_bytes(body)
    if isinstance(body, bytes):
        return Shown("bytes", _hex(body[:MAX_HEX]), size, len(body) > MAX_HEX)
    kind, text = "text", body
    if (pretty := _indented(body)) is not None:
        kind, text = "JSON", pretty
    return Shown(kind, text[:MAX_SHOWN], size, len(text) > MAX_SHOWN)


def preview(message: Message) -> str:
    """Returns the beginning of a body as one line."""
    body = message.body
    if isinstance(body, bytes):
        return body[: MAX_PREVIEW // 3].hex(" ")
    return " ".join(body[: 2 * MAX_PREVIEW].split())[:MAX_PREVIEW]


def _indented(text: str) -> str | None:
    """Returns indented JSON; None: the body is no JSON, or too large."""
    if len(text) > MAX_SHOWN or not text.lstrip().startswith(("{", "[")) or _depth(text) > MAX_DEPTH:
        return None
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return None


def _depth(text: str) -> int:
    """Returns the max depth of brackets, counting those in strings, too."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _hex(body: bytes) -> str:
    """Returns bytes as lines of their place, their hexadecimal digits and their ASCII."""
    lines = []
    for at in range(0, len(body), _LINE):
        some = body[at : at + _LINE]
        text = _NOT_PRINTABLE.sub(".", some.decode("latin-1"))
        lines.append(f"{at:08x}  {some.hex(' '):<{3 * _LINE - 1}}  {text}")
    return "\n".join(lines)
