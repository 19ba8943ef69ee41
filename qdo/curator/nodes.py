"""The nodes of a queue: their names in each of Curator's recipes, and their data.

=========================  ====================================================  ====================================
recipe                     name                                                  order
=========================  ====================================================  ====================================
DistributedQueue           ``queue-`` + sequence                                 sequence
DistributedPriorityQueue   ``queue-`` + ``1`` or ``0`` + priority + sequence     priority, the smallest first; sequence
DistributedDelayQueue      ``queue-|`` + epoch + ``|`` + sequence                epoch; sequence
DistributedIdQueue         ``queue-|`` + id + ``|`` + sequence                   sequence
SimpleDistributedQueue     ``qn-`` + sequence                                    sequence
=========================  ====================================================  ====================================

* The sequence is ZooKeeper's count of the nodes ever created under the queue's node, in ten digits. ZooKeeper keeps it
  as a signed 32-bit number. After 2147483647 it names some nodes ``-2147483648`` and so on, eleven characters, and may
  use a number twice. Here negative sequences sort after all others, because they are newer.
* A priority is a signed 32-bit number, in eight upper-case hex digits as two's complement. The digit before it is ``0``
  for a negative priority and ``1`` for others, so that the names of smaller priorities sort first.
* An epoch is the earliest time of delivery, in ms since 1970, in at least eight upper-case hex digits.
* In ids ``/`` and ``|`` are replaced by ``_``.
* Curator drops the priority or the epoch of a failed message and names it as in a plain queue. So a priority queue may
  have names without priority, which sort before all others, and a delay queue names without epoch, which are due at
  once.
* A node with any other name does not belong to the queue and is left alone.

A node of a SimpleDistributedQueue holds one message as it is. The other four write one or more messages in an envelope:

=========  =======  ===========================================================
offset     size     what
=========  =======  ===========================================================
0          4        version of the format: 0x00010001, big-endian
4          1        0x01: a message follows; 0x02: the end
5          4        length of the message in bytes, a signed big-endian number
9          length   the message
…                   the last three fields again for each further message, then 0x02
=========  =======  ===========================================================

A node may hold no message. Bytes after the end are ignored, as in Curator.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from qdo.errors import BadItem, InvalidArgument

MIN_PRIORITY = -(2**31)
MAX_PRIORITY = 2**31 - 1
MAX_EPOCH = 2**63 - 1
FORBIDDEN_CHARACTERS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""Characters that ZooKeeper does not allow in names, including all beyond 16 bits."""
MAX_ID_LENGTH = 1024
"""Max characters of an id. Curator has no limit; ZooKeeper limits the whole request."""

_BITS = 2**32


def _is_instance(kind: type, value: object) -> bool:
    return isinstance(value, kind)


class Child(NamedTuple):
    """One node of a queue.

    Attributes:
        name: Name of the node, without its parents.
        prefix: The name without the sequence. A message that is put back under it keeps priority, epoch and id.
        sequence: The node's number under its parent, from -2147483648 to 2147483647.
        priority: The priority in the name, or None.
        epoch: The epoch in the name, in ms since 1970, or 0.
        id: The id in the name, with ``_`` for ``/`` and ``|``, or None.
    """

    name: str
    prefix: str
    sequence: int
    priority: int | None = None
    epoch: int = 0
    id: str | None = None

    def rank(self) -> tuple[int, int, int]:
        """Returns a sort key: the order in which nodes of one queue are taken, even when sequences are negative."""
        priority = MIN_PRIORITY - 1 if self.priority is None else self.priority
        return priority, self.epoch, self.sequence % _BITS


class RecipeNodes:
    """The nodes of one recipe: their names, and the messages in each node.

    Args:
        recipe: The recipe's name.
        item: Prefix of the names of its nodes.
        further: Pattern of the optional text between the prefix and the sequence.
    """

    def __init__(self, recipe: str, item: str = "queue-", further: str = "") -> None:
        self.recipe = recipe
        self._item = item
        self._pattern = re.compile(f"{item}(?:{further})?(?P<sequence>[0-9]{{10}}|-[0-9]{{9,10}})")

    def parse(self, name: str) -> Child | None:
        """Returns the parts of a name, or None if it is not a name of this recipe.

        Example:
            >>> PRIORITY.parse("queue-1000000050000000007").priority
            5
            >>> QUEUE.parse("config") is None
            True
        """
        match = self._pattern.fullmatch(name)
        if match is None:
            return None
        parts = match.groupdict()
        priority = int(parts["priority"], 16) if parts.get("priority") else None
        if priority is not None and priority > MAX_PRIORITY:
            priority -= _BITS
        epoch = int(parts["epoch"], 16) if parts.get("epoch") else 0
        prefix = name[: match.start("sequence")]
        return Child(
            name, prefix, int(parts["sequence"]), priority, epoch if epoch <= MAX_EPOCH else 0, parts.get("id")
        )

    def in_order(self, names: Iterable[str]) -> list[Child]:
        """Returns the nodes in the order in which they are taken, without names of other recipes.

        Example:
            >>> children = PRIORITY.in_order(["queue-1000000010000000000", "queue-0FFFFFFFF0000000001"])
            >>> [child.priority for child in children]
            [-1, 1]
        """
        return sorted((child for name in names if (child := self.parse(name)) is not None), key=Child.rank)

    def messages(self, data: bytes) -> list[bytes]:
        return decode(data)

    def data(self, message: bytes) -> bytes:
        return encode([message])


class PlainNames(RecipeNodes):
    def prefix(self) -> str:
        return self._item


class SimpleNames(PlainNames):
    def messages(self, data: bytes) -> list[bytes]:
        return [data]

    def data(self, message: bytes) -> bytes:
        return message


class PriorityNames(RecipeNodes):
    def prefix(self, priority: int) -> str:
        """Returns the prefix for a priority; raises InvalidArgument if it does not fit into 32 bits.

        Example:
            >>> PRIORITY.prefix(-1)
            'queue-0FFFFFFFF'
        """
        if not _is_instance(int, priority) or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
            raise InvalidArgument(f"a priority is a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}, not {priority}")
        return f"{self._item}{'1' if priority >= 0 else '0'}{priority % _BITS:08X}"


class DelayNames(RecipeNodes):
    def prefix(self, epoch: int) -> str:
        """Returns the prefix for an epoch; raises InvalidArgument if it is not above 0 or does not fit into 64 bits.

        Example:
            >>> DELAY.prefix(1795329600001)
            'queue-|1A201FBAA01|'
        """
        if not _is_instance(int, epoch) or not 0 < epoch <= MAX_EPOCH:
            raise InvalidArgument(f"an instant is a whole number of ms since 1970 from 1 to {MAX_EPOCH}, not {epoch}")
        return f"{self._item}|{epoch:08X}|"


class IdNames(RecipeNodes):
    def prefix(self, identifier: str) -> str:
        """Returns the prefix for an id; raises InvalidArgument as :meth:`replace_separators` does.

        Example:
            >>> IDS.prefix("orders/17")
            'queue-|orders_17|'
        """
        return f"{self._item}|{self.replace_separators(identifier)}|"

    def replace_separators(self, identifier: str) -> str:
        """Returns an id with ``_`` for ``/`` and ``|``.

        Raises:
            InvalidArgument: The id is empty, too long, or has characters that ZooKeeper does not allow in names.
        """
        if not _is_instance(str, identifier) or not 0 < len(identifier) <= MAX_ID_LENGTH:
            raise InvalidArgument(f"an id is a text of 1 to {MAX_ID_LENGTH} characters, not {str(identifier)[:50]!r}")
        if match := FORBIDDEN_CHARACTERS.search(identifier):
            raise InvalidArgument(f"ZooKeeper allows no {match[0]!r} in a name; choose another id than {identifier!r}")
        return identifier.replace("/", "_").replace("|", "_")


QUEUE: Final = PlainNames("DistributedQueue")
PRIORITY: Final = PriorityNames("DistributedPriorityQueue", further="[01](?P<priority>[0-9A-F]{8})")
DELAY: Final = DelayNames("DistributedDelayQueue", further=r"\|(?P<epoch>[0-9A-Fa-f]{1,16})\|")
IDS: Final = IdNames("DistributedIdQueue", further=r"\|(?P<id>[^|]*)\|")
SIMPLE: Final = SimpleNames("SimpleDistributedQueue", "qn-")
RECIPES: Final[dict[str, RecipeNodes]] = {
    "queue": QUEUE,
    "priority": PRIORITY,
    "delay": DELAY,
    "id": IDS,
    "simple": SIMPLE,
}
"""Option value of the commands -> recipe."""


VERSION = 0x00010001
MESSAGE = 0x01
END = 0x02
NODE_OVERHEAD_BYTES = 5
"""Number of bytes of a node besides its messages and their headers."""
MESSAGE_HEAD_BYTES = 5
"""Number of bytes before each message: the opcode and the length."""
MAX_REQUEST_OVERHEAD_BYTES = 1024
"""Max bytes of a request besides paths and data."""

_VERSION = struct.Struct(">i")
_HEAD = struct.Struct(">Bi")


def encode(messages: Iterable[bytes]) -> bytes:
    """Returns the data of a node with these messages.

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
        BadItem: The data is not an envelope of Curator. The error holds the data and names the wrong byte.

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
    offset = _VERSION.size
    while (opcode := data[offset : offset + 1]) != bytes([END]):
        if not opcode:
            raise BadItem(f"the data ends at byte {offset} without the opcode 0x{END:02X}", data)
        if opcode[0] != MESSAGE:
            raise BadItem(f"opcode 0x{opcode[0]:02X} at byte {offset} is neither 0x{MESSAGE:02X} nor 0x{END:02X}", data)
        if len(data) < offset + MESSAGE_HEAD_BYTES:
            raise BadItem(f"the data ends in the length of the message at byte {offset}", data)
        _, length = _HEAD.unpack_from(data, offset)
        begin, offset = offset + MESSAGE_HEAD_BYTES, offset + MESSAGE_HEAD_BYTES + length
        if length < 0:
            raise BadItem(f"the message at byte {begin} has a length of {length}", data)
        if len(data) < offset:
            raise BadItem(f"the message at byte {begin} has {len(data) - begin} of its {length} bytes", data)
        messages.append(data[begin:offset])
    return messages


def max_node_bytes(limit: int, path: str, prefix: str) -> int:
    """Returns the max bytes of a node that can be put, and put back by its consumers.

    ``limit`` is the max bytes of a request at the servers, ``jute.maxbuffer``.
    """
    return limit - MAX_REQUEST_OVERHEAD_BYTES - 8 * len(f"{path}/{prefix}".encode())


def check_path(name: str, path: str) -> None:
    parts = path.split("/")
    usable = (
        len(parts) > 1
        and not parts[0]
        and not {"", ".", ".."} & set(parts[1:])
        and not FORBIDDEN_CHARACTERS.search(path)
    )
    if not usable:
        raise InvalidArgument(f"{name} is the path of a node such as /queues/orders, not {path!r}")
    if parts[1] == "zookeeper":
        raise InvalidArgument(f"{name} cannot be below /zookeeper, which belongs to the servers, as {path!r} is")
