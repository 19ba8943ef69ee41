"""A member of a group that does as it is told: a consumer that polls at a steady pace, and notes when what came.

``python -m bench.member SERVICE COORDINATION GROUP QUEUE…`` reads commands from standard input, a line each, and
answers each with a line of JSON:

=========  =============================================================================================================
``join``   starts a consumer; the answer is the instant before
``mark``   forgets how long partitions had to wait; the answer is empty
``tell``   the answer is a :class:`Told`
``leave``  closes the consumer; the answer is the instant before
=========  =============================================================================================================

Instants are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from bench.load.traffic import KEY
from qdo.consumer.consumer import AsyncConsumer
from qdo.consumer.owned_partition import Batch
from qdo.coordination.opening import open_coordinator
from qdo.partitions import Partition
from qdo.settings import ConsumerSettings
from queuey.client import AsyncClient

INTERVAL = 0.1
"""Seconds in which a message of every partition is handed out, as far as there are some."""
POLLS = 4
"""Polls in that time."""
LAST = "last"
"""Body of the last message of each partition."""
COMMIT_SECONDS = 5.0


class Told(msgspec.Struct):
    """What a member has.

    Attributes:
        owned: Its partitions.
        changed: When it was last given some; 0: never.
        first: When it was handed its first message since it joined; 0: not yet.
        waits: For each partition that it had all the time since the mark, and that is not at its end, the longest
            time between two messages.
    """

    owned: list[str]
    changed: float
    waits: dict[str, float]
    first: float = 0.0


class Polling:
    """One stay in the group.

    Args:
        client: To the service.
        place: Where the members meet; blank: at the service.
        group: Its name.
        queues: What it subscribes to.
    """

    def __init__(self, client: AsyncClient, place: str, group: str, queues: list[str]) -> None:
        self._coordinator = open_coordinator(place, group) if place else None
        self._consumer = AsyncConsumer(
            client,
            self._coordinator,
            group=None if place else group,
            queues=queues,
            settings=ConsumerSettings(commit_every=COMMIT_SECONDS),
            on_assign=self._assigned,
            on_revoke=self._revoked,
        )
        self._changed = self._first = 0.0
        self._last: dict[Partition, float] = {}
        self._waits: dict[Partition, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Joins and begins to poll."""
        await self._consumer.start()
        self._task = asyncio.create_task(self._poll())

    async def close(self) -> None:
        """Leaves."""
        await self._consumer.close()
        if self._task is not None:
            await self._task
        if self._coordinator is not None:
            await self._coordinator.close()

    def mark(self) -> None:
        """Forgets how long partitions had to wait."""
        self._waits = dict.fromkeys(self._last, 0.0)

    def tell(self) -> Told:
        """Says what it has; a wait that is not over counts as well."""
        now = time.monotonic()
        waits = {str(each): max(wait, now - self._last[each]) for each, wait in self._waits.items()}
        return Told([str(each) for each in self._consumer.assignment], self._changed, waits, self._first)

    def _assigned(self, _partitions: frozenset[Partition]) -> None:
        self._changed = time.monotonic()

    def _revoked(self, partitions: frozenset[Partition]) -> None:
        for partition in partitions:
            self._forget(partition)

    def _forget(self, partition: Partition) -> None:
        self._last.pop(partition, None)
        self._waits.pop(partition, None)

    async def _poll(self) -> None:
        due = time.monotonic()
        while not self._consumer.closing:
            due = max(due + INTERVAL / POLLS, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self._note(await self._consumer.poll(-(-len(self._consumer.assignment) // POLLS) or 1, 0))

    def _note(self, batches: list[Batch]) -> None:
        now = time.monotonic()
        if batches and not self._first:
            self._first = now
        for partition, messages in batches:
            if partition in self._waits:
                self._waits[partition] = max(self._waits[partition], now - self._last[partition])
            self._last[partition] = now
            if messages[-1].body == LAST:
                self._forget(partition)


async def main(service: str, place: str, group: str, queues: list[str]) -> None:
    """Does what it is told until there is nobody to tell it."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with AsyncClient(service, key=KEY) as client:
        member = Polling(client, place, group, queues)
        while line := await commands.readline():
            instant = time.monotonic()
            answer: object = instant
            match line.decode().strip():
                case "join":
                    member = Polling(client, place, group, queues)
                    await member.start()
                case "leave":
                    await member.close()
                case "mark":
                    member.mark()
                case "tell":
                    answer = member.tell()
            print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
