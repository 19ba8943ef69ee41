"""The bytes of a queue's node: one or more messages, as Curator's four queues with an envelope write them.

=========  =======  ===========================================================
offset     size     what
=========  =======  ===========================================================
0          4        version of the format: 0x00010001, big-endian
4          1        0x01: a message follows; 0x02: the end
5          4        length of the message in bytes, a signed big-endian number
9          length   the message
…                   the last three again for each further message, then 0x02
=========  =======  ===========================================================

A node may hold no message. What follows the end is not looked at, as Curator does not look at it either.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from qdo.errors import BadItem

VERSION = 0x00010001
MESSAGE = 0x01
END = 0x02
OVERHEAD = 5
"""Number of bytes of a node beside its messages and their heads."""
HEAD = 5
"""Number of bytes before each message: the opcode and the length."""
AROUND = 1024
"""Max bytes of a request beside paths and data."""

_VERSION = struct.Struct(">i")
_HEAD = struct.Struct(">Bi")


def encode(messages: Iterable[bytes]) -> bytes:
    """Returns the bytes of a node with these messages.

    Example:
        >>> encode([b"m0"]).hex(" ")
        '00 01 00 01 01 00 00 00 02 6d 30 02'
    """
    parts = [_VERSION.pack(VERSION)]
    for message in messages:
        parts += _HEAD.pack(MESSAGE, len(message)), message
    return b"".join((*parts, bytes([END])))


def decode(data: bytes) -> list[bytes]:
    """Returns the messages of a node.

    Raises:
        BadItem: These are not bytes that Curator's queues write. The error keeps them and says where they differ.

    Example:
        >>> decode(encode([b"one", b""]))
        [b'one', b'']
    """
    if len(data) < _VERSION.size:
        raise BadItem(f"{len(data)} bytes are too few for the format's version, which has {_VERSION.size}", data)
    (version,) = _VERSION.unpack_from(data)
    if version != VERSION:
        raise BadItem(f"version 0x{version & 0xFFFFFFFF:08X} at byte 0 is not 0x{VERSION:08X}", data)
    messages: list[bytes] = []
    at = _VERSION.size
    while (opcode := data[at : at + 1]) != bytes([END]):
        if not opcode:
            raise BadItem(f"the data ends at byte {at} without the opcode 0x{END:02X}", data)
        if opcode[0] != MESSAGE:
            raise BadItem(f"opcode 0x{opcode[0]:02X} at byte {at} is neither 0x{MESSAGE:02X} nor 0x{END:02X}", data)
        if len(data) < at + HEAD:
            raise BadItem(f"the data ends in the length of the message at byte {at}", data)
        _, length = _HEAD.unpack_from(data, at)
        begin, at = at + HEAD, at + HEAD + length
        if length < 0:
            raise BadItem(f"the message at byte {begin} has a length of {length}", data)
        if len(data) < at:
            raise BadItem(f"the message at byte {begin} has {len(data) - begin} of its {length} bytes", data)
        messages.append(data[begin:at])
    return messages


def largest(limit: int, path: str, prefix: str) -> int:
    """Returns the max bytes of a node that can be put, and put back by its consumers.

    ``limit``: max bytes of a request at the servers, ``jute.maxbuffer``.
    """
    return limit - AROUND - 8 * len(f"{path}/{prefix}".encode())
