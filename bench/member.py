"""Child process: a group member that polls at a steady rate and records when it received messages.

``python -m bench.member SERVICE COORDINATION GROUP QUEUE…`` reads one command per line from standard input and answers
each with one line of JSON:

=========  =============================================================================================================
``join``   starts a consumer; the answer is the time before the start
``mark``   resets the recorded waits; the answer is the time of the command
``state``  the answer is a :class:`MemberState`
``leave``  closes the consumer; the answer is the time before the close
=========  =============================================================================================================

Times are seconds of the monotonic clock, which all processes of a machine share.
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

POLL_INTERVAL = 0.1
"""Seconds in which the consumer returns one message of each partition that has any."""
POLLS_PER_INTERVAL = 4
"""Polls per interval."""
LAST_BODY = "last"
"""Body of the last message of each partition."""
COMMIT_SECONDS = 5.0


class MemberState(msgspec.Struct):
    """The state of a member.

    Attributes:
        owned: The partitions that are assigned to the member.
        changed: Time of the last assignment; 0 if there was none.
        first: Time of the first message since the member joined; 0 if none arrived.
        waits: Longest time between two messages, in seconds, by partition. Includes only partitions that the member has
            owned since the mark and has not read to the end.
    """

    owned: list[str]
    changed: float
    waits: dict[str, float]
    first: float = 0.0


class Polling:
    """One membership in the group, from join to leave.

    Args:
        client: Client of the service.
        place: Address of the coordination; empty if the service coordinates the group.
        group: Name of the group.
        queues: Queues that the consumer subscribes to.
    """

    def __init__(self, client: AsyncClient, place: str, group: str, queues: list[str]) -> None:
        self._coordinator = open_coordinator(place, group) if place else None
        self._consumer = AsyncConsumer(
            client,
            self._coordinator,
            group=None if place else group,
            queues=queues,
            settings=ConsumerSettings(commit_every=COMMIT_SECONDS),
            on_assign=self._note_assigned,
            on_revoke=self._drop_revoked,
        )
        self._changed = self._first = 0.0
        self._last: dict[Partition, float] = {}
        self._waits: dict[Partition, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._consumer.start()
        self._task = asyncio.create_task(self._poll())

    async def close(self) -> None:
        await self._consumer.close()
        if self._task is not None:
            await self._task
        if self._coordinator is not None:
            await self._coordinator.close()

    def mark(self) -> None:
        """Resets the waits of all partitions that have received a message."""
        self._waits = dict.fromkeys(self._last, 0.0)

    def read_state(self) -> MemberState:
        """Returns the state; a wait that has not ended counts up to now."""
        now = time.monotonic()
        waits = {str(p): max(wait, now - self._last[p]) for p, wait in self._waits.items()}
        return MemberState([str(p) for p in self._consumer.assignment], self._changed, waits, self._first)

    def _note_assigned(self, _partitions: frozenset[Partition]) -> None:
        self._changed = time.monotonic()

    def _drop_revoked(self, partitions: frozenset[Partition]) -> None:
        for partition in partitions:
            self._drop_wait(partition)

    def _drop_wait(self, partition: Partition) -> None:
        self._last.pop(partition, None)
        self._waits.pop(partition, None)

    async def _poll(self) -> None:
        due = time.monotonic()
        while not self._consumer.closing:
            due = max(due + POLL_INTERVAL / POLLS_PER_INTERVAL, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self._add_waits(await self._consumer.poll(-(-len(self._consumer.assignment) // POLLS_PER_INTERVAL) or 1, 0))

    def _add_waits(self, batches: list[Batch]) -> None:
        """Records the longest wait of each partition since the mark; its last message drops the record.

        Also records the time of the first message of all.
        """
        now = time.monotonic()
        if batches and not self._first:
            self._first = now
        for partition, messages in batches:
            if partition in self._waits:
                self._waits[partition] = max(self._waits[partition], now - self._last[partition])
            self._last[partition] = now
            if messages[-1].body == LAST_BODY:
                self._drop_wait(partition)


async def main(service: str, place: str, group: str, queues: list[str]) -> None:
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with AsyncClient(service, key=KEY) as client:
        member = Polling(client, place, group, queues)
        while line := await commands.readline():
            received_at = time.monotonic()
            answer: object = received_at
            match line.decode().strip():
                case "join":
                    member = Polling(client, place, group, queues)
                    await member.start()
                case "leave":
                    await member.close()
                case "mark":
                    member.mark()
                case "state":
                    answer = member.read_state()
            print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
