"""Selects messages of a scan: a pure decision on one message."""

from __future__ import annotations

import msgspec

from queuey.messages import Message, Meta

NOTHING = Meta()


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions for a message; blank fields do not count.

    Attributes:
        text: In its body, in any case. A body of bytes has the UTF-8 of the text, as it is.
        header: The name of one of its headers.
        value: In the value of that header; without ``header``: in that of any header.
        key: Its key, in an ordered queue.
    """

    text: str = ""
    header: str = ""
    value: str = ""
    key: str = ""

    @property
    def anything(self) -> bool:
        """True if every message matches."""
        return not (self.text or self.header or self.value or self.key)

    def takes(self, message: Message) -> bool:
        meta = message.meta or NOTHING
        if self.key and meta.key != self.key:
            return False
        if (self.header or self.value) and not self._has_header(meta):
            return False
        return not self.text or _holds(message.body, self.text)

    def _has_header(self, meta: Meta) -> bool:
        name, value = self.header.lower(), self.value
        return any(name in {"", given} and value in held for given, held in meta.headers)


def _holds(body: str | bytes, text: str) -> bool:
    if isinstance(body, bytes):
        return text.encode("utf-8", "surrogatepass") in body
    return text.lower() in body.lower()
