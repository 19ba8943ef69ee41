"""Translates names of queues, ids of messages, and moves between EmoDB's API and the service.

A plain queue and a dedup queue may have the same name: the dedup queue ``q`` is the application's queue ``q~dedup``. A
name that begins with two underscores gets a ``~`` in front, because the application's queues do not begin with an
underscore. No name of a caller has a ``~``, so no two of them map to the same queue.

A message id has 40 hex digits and is valid in one queue: four are the partition, 32 the message's own id, and four a
checksum over both and the queue's name. It names a message, not a delivery: every caller with the id may acknowledge
the message, no matter who claimed it. A move has a reference in base32, and one of three states.
"""

from __future__ import annotations

import binascii
import re
from base64 import b32decode, b32encode
from collections.abc import Iterable
from typing import Literal
from zlib import crc32

from queuey.api.progress import Move
from queuey.claims.rules.receipts import ClaimReceipt
from queuey.facades.emodb.errors import BadArgument
from queuey.model import ids
from queuey.model.messages import Message

Kind = Literal["plain", "dedup"]
"""The option ``kind`` of the application's queue."""

MAX_NAME = 255
"""Max characters of a caller's name for a queue."""
_DEDUP_SUFFIX = "~dedup"
_SYSTEM_PREFIX = "~"
MAX_QUEUE_NAME = len(_SYSTEM_PREFIX) + MAX_NAME + len(_DEDUP_SUFFIX)
"""Max characters of the name of the application's queue."""

_NAME = re.compile(rf"(?!_(?!_))(?!\.{{1,2}}$)[a-z0-9.:@_-]{{1,{MAX_NAME}}}", re.ASCII)

ID_LENGTH = 40
_ID = re.compile(r"([0-9a-f]{4})([0-9a-f]{32})([0-9a-f]{4})", re.ASCII)
_MOVE_STATUSES = {"running": "IN_PROGRESS", "cancelling": "IN_PROGRESS", "done": "COMPLETE"}
"""State of a move -> its status for EmoDB's clients; any other state is ``ERROR``."""


def queue_name(name: str, kind: Kind) -> str:
    if _NAME.fullmatch(name) is None:
        raise BadArgument(
            f"Queue name must be a lowercase ASCII string between 1 and {MAX_NAME} characters in length. "
            "Allowed punctuation is - . : @ and _ ; a name begins with no underscore or with two, and is not . or .."
        )
    return f"{_SYSTEM_PREFIX if name[0] == '_' else ''}{name}{_DEDUP_SUFFIX if kind == 'dedup' else ''}"


def is_queue_of_kind(queue: str, kind: Kind) -> bool:
    return queue.endswith(_DEDUP_SUFFIX) == (kind == "dedup")


def caller_name(queue: str) -> str:
    return queue.removeprefix(_SYSTEM_PREFIX).removesuffix(_DEDUP_SUFFIX)


class MessageIds:
    """Writes and reads the ids of one queue's messages."""

    def __init__(self, queue: str) -> None:
        self._seed = crc32(queue.encode())

    def write(self, message: Message) -> str:
        text = f"{message.partition:04x}{message.id}"
        return text + self._checksum(text)

    def read(self, texts: Iterable[str], partitions: int) -> list[ClaimReceipt]:
        """Parses ids without repetitions, leaving out those in partitions that the queue does not have any more."""
        receipts = [self._read(text) for text in dict.fromkeys(map(str.lower, texts))]
        return [receipt for receipt in receipts if 1 <= receipt.partition <= partitions]

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


def reference_of(move: str) -> str:
    return b32encode(bytes.fromhex(move)).decode().rstrip("=")


def parse_move_reference(reference: str) -> str | None:
    try:
        return b32decode(reference + "=" * (-len(reference) % 8)).hex()
    except (ValueError, binascii.Error):
        return None


def describe_move(report: Move) -> dict[str, str]:
    return {
        "from": caller_name(report.source),
        "to": caller_name(report.target),
        "status": _MOVE_STATUSES.get(report.state, "ERROR"),
    }
