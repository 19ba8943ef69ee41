"""How far partitions are handled: up to where everything is done, and how that is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as some

from qdo.errors import InvalidArgument
from qdo.partitions import Partition, Queue
from qdo.settings import WorkerSettings
from qdo.worker.dispatch.contiguous_offset import ContiguousOffset
from qdo.worker.dispatch.offset_committer import OffsetCommitter
from qdo.worker.metrics import WorkerMetrics

REFUSED, OTHER = (Partition(Queue("store", "app", "q"), number) for number in (1, 2))


@given(some.integers(1, 30).flatmap(lambda count: some.permutations(range(count))))
def test_the_end_is_what_lies_before_the_first_unfinished_one(order: list[int]) -> None:
    """Whatever the order in which messages are done, the end never passes one that is not, and misses none that is."""
    prefix = ContiguousOffset()
    prefix.add(str(number) for number in range(len(order)))
    done: set[int] = set()
    for number in order:
        prefix.done(str(number))
        done.add(number)
        first = next((each for each in range(len(order)) if each not in done), len(order))
        assert prefix.end == (str(first - 1) if first else None)
        assert prefix.unfinished == len(order) - len(done)
        assert len(prefix) == len(order) - first


@given(some.lists(some.sampled_from(["done", "waiting", "held"]), max_size=20))
def test_gaps_are_what_keeps_finished_messages_from_being_recorded(states: list[str]) -> None:
    """Every unfinished message before a finished one counts, none behind the last of those or behind a held one."""
    prefix = ContiguousOffset()
    prefix.add(str(at) for at in range(len(states)))
    for at, state in enumerate(states):
        if state == "done":
            prefix.done(str(at))
    held = {str(at) for at, state in enumerate(states) if state == "held"}
    until = states.index("held") if held else len(states)
    last = max((at for at in range(until) if states[at] == "done"), default=0)
    expected = {str(at) for at in range(last) if states[at] == "waiting"}
    assert prefix.gaps(held) == expected


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
