"""The paths of a group's nodes. Pure.

::

    <root>/groups/<group>/members/<id>                                         ephemeral: the member
                           /leader                                               ephemeral: the leader's id
                           /target                                               the current generation
                           /assignments/<id>                                     a member's partitions
                           /owners/<service>/<application>/<queue>/<partition>   ephemeral: its owner's id
                           /offsets/<service>/<application>/<queue>/<partition>  how far it was processed

The name of a node cannot contain a slash or most control characters, and cannot be empty, ``.`` or ``..``;
``zookeeper`` is reserved. So names are percent-encoded. The names ``.``, ``..``, ``zookeeper`` and the empty name get
encodings of their own, so that every name has a distinct node.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote

from qdo.errors import CoordinationIncompatible, InvalidArgument
from qdo.group.zookeeper.tree import Create, Operation
from qdo.partitions import Partition, Queue

EMPTY_NAME_NODE = "%"
"""The node of the empty name; no other name is encoded as a single percent sign."""
RESERVED_NAMES = frozenset({".", "..", "zookeeper"})
MAX_CACHED_QUEUES = 20_000
_URL = re.compile(r"(\w+):(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?")
"""``urlsplit`` refuses lists of hosts with an IPv6 address from Python 3.14 on."""
_NO_NAME = re.compile("%00|%2f", re.IGNORECASE)
"""Encoded NUL or slash. Neither can be in the name of a file or node, so such a path is refused."""


def split_url(url: str, scheme: str, form: str) -> SplitResult:
    """Returns the parts of a coordination service's URL.

    Raises:
        InvalidArgument: The URL has another scheme, a fragment, or characters that are not printable. The error shows
            ``form``.
    """
    parts = _URL.fullmatch(url)
    if parts and parts[1] == scheme and url.isprintable() and not _NO_NAME.search(parts[3]):
        return SplitResult(parts[1], parts[2] or "", parts[3], parts[4] or "", "")
    raise InvalidArgument(f"coordination is {url!r}: give {form}")


def encode(name: str) -> str:
    if not name:
        return EMPTY_NAME_NODE
    if name in RESERVED_NAMES:
        return f"%{ord(name[0]):02X}{name[1:]}"
    return quote(name, safe="")


def decode(node: str) -> str:
    """Returns the name that :func:`encode` was given.

    Raises:
        CoordinationIncompatible: The text is not an encoded name, so another program made the node.
    """
    try:
        name = "" if node == EMPTY_NAME_NODE else unquote(node, errors="strict")
    except UnicodeDecodeError:
        name = EMPTY_NAME_NODE
    if encode(name) != node:
        raise CoordinationIncompatible(f"another program created the node {node!r}")
    return name


@lru_cache(maxsize=MAX_CACHED_QUEUES)
def _queue_path(queue: Queue) -> str:
    return "/".join(map(encode, queue))


class GroupPaths:
    """The paths of one group.

    Args:
        root: The parent of all nodes: empty, or a path that begins with a slash and ends without one.
        group: The group's name.

    Attributes:
        groups, members, assignments, owners, offsets: Nodes that contain other nodes.
        top: The group's node.
    """

    def __init__(self, root: str, group: str) -> None:
        self.group = group
        self.groups = f"{root}/groups"
        self.top = top = f"{self.groups}/{encode(group)}"
        self.members = f"{top}/members"
        self.leader = f"{top}/leader"
        self.target = f"{top}/target"
        self.assignments = f"{top}/assignments"
        self.owners = f"{top}/owners"
        self.offsets = f"{top}/offsets"

    def member(self, member: str) -> str:
        return f"{self.members}/{encode(member)}"

    def assignment(self, member: str) -> str:
        return f"{self.assignments}/{encode(member)}"

    def owners_of(self, queue: Queue) -> str:
        return f"{self.owners}/{_queue_path(queue)}"

    def offsets_of(self, queue: Queue) -> str:
        return f"{self.offsets}/{_queue_path(queue)}"

    def owner(self, partition: Partition) -> str:
        # The node exists while the partition has an owner.
        return f"{self.owners}/{_queue_path(partition.queue)}/{partition.number}"

    def offset(self, partition: Partition) -> str:
        return f"{self.offsets}/{_queue_path(partition.queue)}/{partition.number}"

    def may_be_watched(self, kind: type[Operation], above: str) -> bool:
        """Returns whether a session may watch for this kind of operation below a node: not offsets, nor new owners."""
        return not above.startswith(self.offsets) and not (kind is Create and above.startswith(self.owners))


def parse_partition(parts: tuple[str, ...]) -> Partition:
    """Returns the partition that the last four parts of a path name.

    Raises:
        CoordinationIncompatible: The parts do not name a partition, so another program made the node.
    """
    service, application, name, number = parts
    if not number.isascii() or not number.isdigit() or str(int(number)) != number or not int(number):
        raise CoordinationIncompatible(f"another program created the node {number!r}")
    return Partition(Queue(decode(service), decode(application), decode(name)), int(number))
