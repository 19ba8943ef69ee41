"""The names of a queue's nodes: what each of Curator's recipes writes, what it says, and the order it gives.

=========================  ====================================================  ====================================
recipe                     name                                                  order
=========================  ====================================================  ====================================
DistributedQueue           ``queue-`` + sequence                                 sequence
DistributedPriorityQueue   ``queue-`` + ``1`` or ``0`` + priority + sequence     priority, the smallest first; sequence
DistributedDelayQueue      ``queue-|`` + epoch + ``|`` + sequence                epoch; sequence
DistributedIdQueue         ``queue-|`` + id + ``|`` + sequence                   sequence
SimpleDistributedQueue     ``qn-`` + sequence                                    sequence
=========================  ====================================================  ====================================

* The sequence is ZooKeeper's count of the nodes that were ever created under the queue's node, in ten digits.
  ZooKeeper keeps it in 32 bits with a sign. After 2147483647 it names some nodes ``-2147483648`` and so on, eleven
  characters, and may use a number twice. Here negative sequences come after all others, as they are younger.
* A priority is a number of 32 bits with a sign, in eight upper-case hex digits as two's complement; ``0`` stands before
  those below zero and ``1`` before the others, so that the names of smaller priorities sort first.
* An epoch is the instant from which a message may be taken, in ms since 1970, in at least eight upper-case hex digits.
* In ids ``/`` and ``|`` are replaced by ``_``.
* Curator forgets the priority or the epoch of a message whose handling failed and names it as in a plain queue. So a
  priority queue may hold names without priority, which come before all others, and a delay queue names without epoch,
  which are due at once.
* Any other name is none of the queue's: it stays as it is.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple

from qdo.errors import InvalidArgument

ITEM = "queue-"
SIMPLE_ITEM = "qn-"
SEPARATOR = "|"
LEAST_PRIORITY = -(2**31)
MOST_PRIORITY = 2**31 - 1
MOST_EPOCH = 2**63 - 1
FORBIDDEN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""Characters that ZooKeeper allows in no name, those beyond 16 bits among them."""
LONGEST_ID = 1024
"""Max characters of an id; Curator has no limit, ZooKeeper one for the whole request."""

_SEQUENCE = "(?P<sequence>[0-9]{10}|-[0-9]{9,10})"
_BITS = 2**32


def _is(kind: type, value: object) -> bool:
    """Checks a type for callers that are checked by no tool."""
    return isinstance(value, kind)


class Child(NamedTuple):
    """One node of a queue.

    Attributes:
        name: Of the node, without its parents.
        prefix: The name without the sequence. A message that is put back under it keeps priority, epoch and id.
        sequence: The node's number under its parent, from -2147483648 to 2147483647.
        priority: Of a priority queue's node; None: the name has none.
        epoch: Of a delay queue's node, in ms since 1970; 0 for all others and where the name has none.
        id: Of an id queue's node, with ``_`` for ``/`` and ``|``; None: the name has none.
    """

    name: str
    prefix: str
    sequence: int
    priority: int | None = None
    epoch: int = 0
    id: str | None = None

    @property
    def age(self) -> int:
        """Sorts nodes of one parent from the oldest to the youngest, also after the sequence became negative."""
        return self.sequence % _BITS


class Names(abc.ABC):
    """The names of one recipe.

    Attributes:
        recipe: The recipe's name.
        item: What the names of its nodes begin with.
    """

    recipe: ClassVar[str]
    item: ClassVar[str] = ITEM

    def parse(self, name: str) -> Child | None:
        """Returns the parts of a name; None: it is none of the recipe's.

        Example:
            >>> PRIORITY.parse("queue-1000000050000000007").priority
            5
            >>> QUEUE.parse("config") is None
            True
        """
        for pattern in self._patterns:
            if match := pattern.fullmatch(name):
                prefix = name[: match.start("sequence")]
                return self._child(name, prefix, int(match["sequence"]), match.groupdict())
        return None

    def in_order(self, names: Iterable[str]) -> list[Child]:
        """Returns the nodes in the order in which they are taken; names that are none of the recipe's are left out.

        Example:
            >>> found = PRIORITY.in_order(["queue-1000000010000000000", "queue-0FFFFFFFF0000000001"])
            >>> [child.priority for child in found]
            [-1, 1]
        """
        return sorted((child for name in names if (child := self.parse(name)) is not None), key=self.rank)

    def rank(self, child: Child) -> tuple[int, ...]:
        """Returns the sort key of a node in its queue."""
        return (child.age,)

    _patterns: ClassVar[tuple[re.Pattern[str], ...]]

    def _child(self, name: str, prefix: str, sequence: int, found: dict[str, str]) -> Child:  # noqa: ARG002 - others look
        return Child(name, prefix, sequence)


class PlainNames(Names):
    recipe = "DistributedQueue"
    _patterns = (re.compile(ITEM + _SEQUENCE),)

    def prefix(self) -> str:
        return self.item


class SimpleNames(PlainNames):
    recipe = "SimpleDistributedQueue"
    item = SIMPLE_ITEM
    _patterns = (re.compile(SIMPLE_ITEM + _SEQUENCE),)


class PriorityNames(Names):
    recipe = "DistributedPriorityQueue"
    _patterns = (
        re.compile(ITEM + r"(?P<sign>[01])(?P<priority>[0-9A-F]{8})" + _SEQUENCE),
        re.compile(ITEM + _SEQUENCE),
    )

    def prefix(self, priority: int) -> str:
        """Raises InvalidArgument if the priority does not fit into 32 bits.

        Example:
            >>> PRIORITY.prefix(-1)
            'queue-0FFFFFFFF'
        """
        if not _is(int, priority) or not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
            raise InvalidArgument(
                f"a priority is a whole number from {LEAST_PRIORITY} to {MOST_PRIORITY}, not {priority}"
            )
        return f"{self.item}{'1' if priority >= 0 else '0'}{priority % _BITS:08X}"

    def rank(self, child: Child) -> tuple[int, ...]:
        return (LEAST_PRIORITY - 1 if child.priority is None else child.priority, child.age)

    def _child(self, name: str, prefix: str, sequence: int, found: dict[str, str]) -> Child:
        if "priority" not in found:
            return Child(name, prefix, sequence)
        value = int(found["priority"], 16)
        return Child(name, prefix, sequence, priority=value if value <= MOST_PRIORITY else value - _BITS)


class DelayNames(Names):
    recipe = "DistributedDelayQueue"
    _patterns = (
        re.compile(ITEM + r"\|(?P<epoch>[0-9A-Fa-f]{1,16})\|" + _SEQUENCE),
        re.compile(ITEM + _SEQUENCE),
    )

    def prefix(self, epoch: int) -> str:
        """Raises InvalidArgument if the epoch is not above 0, or does not fit into 64 bits.

        Example:
            >>> DELAY.prefix(1795329600001)
            'queue-|1A201FBAA01|'
        """
        if not _is(int, epoch) or not 0 < epoch <= MOST_EPOCH:
            raise InvalidArgument(f"an instant is a whole number of ms since 1970 from 1 to {MOST_EPOCH}, not {epoch}")
        return f"{self.item}{SEPARATOR}{epoch:08X}{SEPARATOR}"

    def rank(self, child: Child) -> tuple[int, ...]:
        return (child.epoch, child.age)

    def _child(self, name: str, prefix: str, sequence: int, found: dict[str, str]) -> Child:
        epoch = int(found.get("epoch", "0"), 16)
        return Child(name, prefix, sequence, epoch=epoch if epoch <= MOST_EPOCH else 0)


class IdNames(Names):
    recipe = "DistributedIdQueue"
    _patterns = (
        re.compile(ITEM + r"\|(?P<id>[^|]*)\|" + _SEQUENCE),
        re.compile(ITEM + _SEQUENCE),
    )

    def prefix(self, identifier: str) -> str:
        """Raises InvalidArgument: see :meth:`fixed`.

        Example:
            >>> IDS.prefix("orders/17")
            'queue-|orders_17|'
        """
        return f"{self.item}{SEPARATOR}{self.fixed(identifier)}{SEPARATOR}"

    def fixed(self, identifier: str) -> str:
        """Returns an id with ``_`` for ``/`` and ``|``.

        Raises:
            InvalidArgument: It is empty, too long, or has characters that ZooKeeper allows in no name.
        """
        if not _is(str, identifier) or not 0 < len(identifier) <= LONGEST_ID:
            raise InvalidArgument(f"an id is a text of 1 to {LONGEST_ID} characters, not {str(identifier)[:50]!r}")
        if match := FORBIDDEN.search(identifier):
            raise InvalidArgument(f"ZooKeeper takes no {match[0]!r} in a name; choose another id than {identifier!r}")
        return identifier.replace("/", "_").replace(SEPARATOR, "_")

    def _child(self, name: str, prefix: str, sequence: int, found: dict[str, str]) -> Child:
        return Child(name, prefix, sequence, id=found.get("id"))


QUEUE: Final = PlainNames()
PRIORITY: Final = PriorityNames()
DELAY: Final = DelayNames()
IDS: Final = IdNames()
SIMPLE: Final = SimpleNames()
RECIPES: Final[dict[str, Names]] = {
    "queue": QUEUE,
    "priority": PRIORITY,
    "delay": DELAY,
    "id": IDS,
    "simple": SIMPLE,
}
"""The recipes by the names that commands have for them."""
