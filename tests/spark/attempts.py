"""Attempts to write rows at reserved ids, killed at any step, and a reader of their results. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, ClassVar

import msgspec
import numpy as np

from queuey.model import ids
from queuey.model.messages import Message, Queue, Slice
from queuey.storage import Bulk, Ledger, Messages, Store, bridge
from queuey.storage.arrow_format import Integers, MessageColumns, columns_of
from tests.interposed_store import InterposedStore

DAY = 86_400 * ids.TICKS_PER_SECOND


class Texts(msgspec.Struct):
    """Rows that are texts, each at its own index, spread over two partitions."""

    texts: list[str]
    numbers: list[int]
    span: int
    order: bytes = b""
    content: bytes = b""

    @property
    def indexes(self) -> Integers:
        return np.array(self.numbers, np.int64)

    @classmethod
    def chunk(cls, *texts: str) -> Texts:
        order = blake2b(repr(texts).encode(), digest_size=16).digest()
        content = blake2b(repr(sorted(texts)).encode(), digest_size=16).digest()
        return cls(list(texts), list(range(len(texts))), len(texts), order, content)

    def make_messages(self, base: int, low: int) -> MessageColumns:
        return columns_of(
            Message(base + index, low, index % 2 + 1, base + index + DAY, text)
            for index, text in zip(self.numbers, self.texts, strict=True)
        )


class Killed(BaseException):
    """The simulated end of an attempt by SIGKILL: nothing catches it."""


class Mortal(InterposedStore):
    """A store whose attempt is killed at a given step: before it takes effect, after it, or halfway.

    Args:
        store: The real one.
        at: The number of the step, from 0; None for never.
        when: ``before``, ``after``, or ``half``: half of the messages were written.
        steps: The methods that count as steps.

    Attributes:
        between: Called before each step, to simulate others.
    """

    WRITES: ClassVar[tuple[Callable[..., Any], ...]] = (Bulk.load_unread, Messages.delete)
    STEPS: ClassVar[tuple[Callable[..., Any], ...]] = (*WRITES, Ledger.enter, Messages.fetch)

    def __init__(
        self, store: Store, at: int | None, when: str = "before", steps: Iterable[Callable[..., Any]] = STEPS
    ) -> None:
        super().__init__(store)
        self._at = at
        self._when = when
        self.between: Callable[[], object] = lambda: None
        self.steps: list[str] = []
        for method in steps:
            self.instead(method, self._stepping(method))

    def _stepping(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the store's method as a step: it counts, and the chosen one is killed before, halfway or after."""
        real, name = self.method(method), method.__name__

        async def step(*arguments: Any, **named: object) -> object:  # noqa: ANN401 - any method
            self.between()
            self.steps.append(name)
            if len(self.steps) - 1 != self._at:
                return await real(*arguments, **named)
            if self._when == "after":
                await real(*arguments, **named)
            if self._when == "half" and method in self.WRITES:
                queue, some = arguments
                await real(queue, list(some)[: len(list(some)) // 2])
            raise Killed(name)

        return step


class Reader:
    """Follows a queue with cursors, as any reader may, and keeps what it received."""

    def __init__(self, store: Store, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._cursors = dict.fromkeys(range(1, queue.partitions + 1), ids.FIRST)
        self.seen: list[str] = []

    def read(self) -> None:
        """Reads one page of each partition from its cursor on, and keeps the texts."""
        for partition, cursor in self._cursors.items():
            [page] = bridge.run(self._store.messages.read(self._queue, [Slice(partition, cursor, limit=10_000)]))
            self.seen += [str(message.body) for message in page.messages]
            assert page.next is not None
            self._cursors[partition] = page.next
