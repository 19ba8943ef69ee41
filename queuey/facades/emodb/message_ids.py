"""Message ids as callers of this API have them: 40 hex digits, which are good for one queue.

Four digits are the partition, 32 the message's id, and four a checksum over both and the queue's name. They name a
message, not a delivery: a caller with the id may acknowledge the message, whichever caller has claimed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from zlib import crc32

from queuey import ids
from queuey.claims.receipts import ClaimReceipt
from queuey.facades.emodb.errors import BadArgument
from queuey.messages import Message

ID_LENGTH = 40
"""Number of characters of an id."""
_ID = re.compile(r"([0-9a-f]{4})([0-9a-f]{32})([0-9a-f]{4})", re.ASCII)


class MessageIds:
    """Writes and reads the ids of one queue's messages.

    Args:
        queue: The name of the application's queue.
    """

    def __init__(self, queue: str) -> None:
        self._seed = crc32(queue.encode())

    def write(self, message: Message) -> str:
        text = f"{message.partition:04x}{message.id}"
        return text + self._checksum(text)

    def read(self, texts: Iterable[str], partitions: int) -> list[ClaimReceipt]:
        """Reads ids, each once; those of partitions that the queue does not have any more are left out.

        Raises:
            BadArgument: One is malformed, or of another queue.
        """
        found = [self._read(text) for text in dict.fromkeys(map(str.lower, texts))]
        return [receipt for receipt in found if 1 <= receipt.partition <= partitions]

    def _read(self, text: str) -> ClaimReceipt:
        match = _ID.fullmatch(text)
        if match is None:
            raise BadArgument("Invalid event ID.")
        partition, name, checksum = match.groups()
        if checksum != self._checksum(partition + name):
            raise BadArgument("Invalid event ID checksum.")
        try:
            return ClaimReceipt(int(partition, 16), *ids.parse_id(name))
        except ValueError:
            raise BadArgument("Invalid event ID.") from None

    def _checksum(self, text: str) -> str:
        return f"{crc32(text.encode(), self._seed) & 0xFFFF:04x}"
