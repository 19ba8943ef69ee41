"""How far partitions are handled is recorded, also where one end is refused while the next one is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from qdo.errors import InvalidArgument
from qdo.partitions import Partition, Queue
from qdo.worker.dispatch.offset_committer import OffsetCommitter
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.settings import WorkerSettings

REFUSED, OTHER = (Partition(Queue("store", "app", "q"), number) for number in (1, 2))


class Consumer:
    """Refuses one end, alone or beside others, and calls something meanwhile."""

    def __init__(self) -> None:
        self.recorded: dict[Partition, str] = {}
        self.meanwhile: Callable[[], None] = lambda: None

    async def commit(self, offsets: Mapping[Partition, str]) -> None:
        """Records offsets, all or none."""
        if offsets.get(REFUSED) == "refused":
            if len(offsets) == 1:
                self.meanwhile()
            raise InvalidArgument("refused")
        self.recorded |= offsets


async def test_an_end_that_is_noted_while_an_earlier_one_is_refused_is_recorded() -> None:
    """Of several ends one is refused; only that is forgotten, and not what was handled meanwhile."""
    consumer = Consumer()
    progress = OffsetCommitter(consumer, WorkerSettings(), WorkerMetrics(None))  # type: ignore[arg-type] # as far as it goes
    consumer.meanwhile = lambda: progress.note(REFUSED, "later", 1)
    progress.note(REFUSED, "refused", 1)
    progress.note(OTHER, "end", 1)
    for _ in range(2):
        await progress.flush(None, asyncio.get_running_loop().time() + 60)
    progress.close()
    assert (consumer.recorded, progress.dropped) == ({REFUSED: "later", OTHER: "end"}, 0)
