"""What is written: changes of which each happens whole or not at all, and how many of them go in one transaction. Pure.

A change is some operations on nodes. Transactions cost the servers a round of agreement each and the client a packet
each, so changes that have nothing to do with each other are sent bundled; when a bundle is refused because of one of
them, they are sent again each for itself.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from qdo.errors import CoordinationLost

ANY = -1
"""The version that every node has."""
MOST_OPERATIONS = 128
MOST_BYTES = 256 * 1024
"""Of one bundle: a quarter of what a server takes in one packet."""
OVERHEAD = 64
"""Bytes of an operation beside its path and its data, roughly: numbers and access lists."""
NODE_LIMIT = 1_000_000
"""Bytes that a node may hold; a server breaks the connection at about 1 MiB with all that is around it."""


class Create(NamedTuple):
    """Makes a node, gone with the session if it is ephemeral. ZooKeeper completes the name of one of a sequence."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(NamedTuple):
    """Replaces the data of a node that has a version; its version goes up by one."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Removes a node."""

    path: str
    data: bytes = b""
    """Always empty."""


class Check(NamedTuple):
    """Asks for a node to be there, at any version or at one."""

    path: str
    version: int = ANY
    data: bytes = b""
    """Always empty."""


Operation: TypeAlias = Create | SetData | Delete | Check
Change: TypeAlias = tuple[Operation, ...]


class RejectionReason(enum.Enum):
    """Why a change did not happen."""

    NO_NODE = "a node is missing"
    NODE_EXISTS = "a node is there already"
    BAD_VERSION = "a node has another version"
    NOT_EMPTY = "a node holds others"


class Rejection(NamedTuple):
    """A change that did not happen.

    Attributes:
        why: The reason.
        at: The operation that failed, counted from 0.
    """

    why: RejectionReason
    at: int


class Applied(NamedTuple):
    """A change that happened.

    Attributes:
        versions: For each operation the version of the node afterwards, 0 where there is none.
    """

    versions: tuple[int, ...]


Outcome: TypeAlias = Applied | Rejection


class NodeData(NamedTuple):
    """What was read of a node.

    Attributes:
        data: What it holds; empty when only its presence was asked for.
        version: Of the data.
        changed: The transaction that changed it last; never the same for two states of a path.
        session: Whose it is if it is ephemeral, else 0.
    """

    data: bytes
    version: int
    changed: int
    session: int


def bundle(changes: Sequence[Change], most: int = MOST_OPERATIONS) -> Iterator[slice]:
    """Yields which changes go together, in order, up to so many operations."""
    first, operations, weight = 0, 0, 0
    for index, change in enumerate(changes):
        more = size(change)
        if index > first and (operations + len(change) > most or weight + more > MOST_BYTES):
            yield slice(first, index)
            first, operations, weight = index, 0, 0
        operations += len(change)
        weight += more
    if first < len(changes):
        yield slice(first, len(changes))


def size(change: Change) -> int:
    """Returns how many bytes a change takes, roughly."""
    return sum(OVERHEAD + len(each.path) + len(each.data) for each in change)


def join(changes: Sequence[Change]) -> Change:
    """Returns one change that does all of several."""
    return tuple(operation for change in changes for operation in change)


def split(done: Applied, changes: Sequence[Change]) -> Iterator[Applied]:
    """Yields for each of the changes that were joined what came of it."""
    at = 0
    for change in changes:
        yield Applied(done.versions[at : at + len(change)])
        at += len(change)


class Rounds:
    """Counts how often something was tried again because others were quicker.

    Args:
        what: For the error.
        most: After how many times it is given up.
    """

    def __init__(self, what: str, most: int = 25) -> None:
        self._what = what
        self._left = most

    def __bool__(self) -> bool:
        """Reports that there is another round.

        Raises:
            CoordinationLost: There were too many; it may be tried again later.
        """
        if not self._left:
            raise CoordinationLost(f"{self._what} was changed by others again and again")
        self._left -= 1
        return True
