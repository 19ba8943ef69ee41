"""Messages loaded above all readers: what keeps readers from missing them, in a world of moved clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import TooLate
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import Message, Queue
from queuey.storage import bridge
from queuey.storage.cassandra.cluster import Statement
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.tables.bulk import window
from queuey.storage.cassandra.write.bulk_load import Loader
from tests.contract.samples import run_call
from tests.replacing import replace
from tests.storage.cassandra.interposed import INSERTS, RECORDS, WAIT_TIMEOUT
from tests.storage.cassandra.scene import TTL, D, Process, Reader, S, Scene, W

SECOND = TICKS_PER_SECOND
SPARE = D - S - W
"""Seconds after an id's time until which a load may begin."""


def make_upcoming(process: Process, ahead: float, count: int = 5) -> list[Message]:
    first = bridge.run(process.store.ledger.now()) + round(ahead * SECOND)
    return [Message(first + n, 77, 1, first + TTL * SECOND, f"{n}") for n in range(count)]


def begin_load(process: Process, queue: Queue, messages: Sequence[Message]) -> Future[int]:
    with_one = ThreadPoolExecutor(1)
    try:
        return with_one.submit(run_call, process.store.bulk.load_unread, queue, messages)
    finally:
        with_one.shutdown(wait=False)


def wait_for_promise(loading: Future[int]) -> bool:
    try:
        return loading.result(WAIT_TIMEOUT) > 0
    except TooLate:
        return False


def find_missed(reader: Reader, messages: Sequence[Message]) -> list[str]:
    seen = set(reader.seen)
    return [f"{one.body!r} missed" for one in messages if one.position < reader.cursor and one.position not in seen]


def hold_up(scene: Scene, requests: Sequence[Statement], behind: float = 0.0) -> list[str]:
    """Holds some of a load's requests until a reader has passed its ids.

    ``behind``: seconds by which the machine's clock falls behind meanwhile, as after a suspension, so that the answer
    seems to be in time. Returns the missed messages of a load that succeeded.
    """
    writing, reading = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading, queue)
    messages = make_upcoming(writing, 0.5)
    gate = writing.wire.hold(requests)
    loading = begin_load(writing, queue, messages)
    gate.wait_until_reached()
    scene.world.advance(D + S)
    if behind:
        writing.machine.lag = behind
        writing.check_clock()
    reader.read_more()
    gate.open()
    promised = wait_for_promise(loading)
    reader.read_more()
    return find_missed(reader, messages) if promised else []


def stopped_before_its_undo(scene: Scene) -> list[str]:
    """Stops a process that is about to send; another deletes its late ids. Returns the messages that come back."""
    writing, other = scene.start(), scene.start()
    queue = scene.queue(writing)
    messages = make_upcoming(writing, 0.5)
    places: list[tuple[int, Position]] = [(1, message.position) for message in messages]
    send = Loader.send

    def stop_then_send(self: Loader, *arguments: Any) -> int:  # noqa: ANN401 - the loader's
        scene.world.advance(0.5 + SPARE)
        with pytest.raises(TooLate) as caught:
            bridge.run(other.store.bulk.load_unread(queue, messages))
        assert not caught.value.written
        bridge.run(other.store.messages.delete(queue, places))
        scene.world.advance(D)
        return send(self, *arguments)

    with replace(send, stop_then_send), pytest.raises(TooLate) as caught:
        bridge.run(writing.store.bulk.load_unread(queue, messages))
    assert caught.value.written
    return [f"{one.body!r} is back" for one in bridge.run(other.store.messages.fetch(queue, places))]


SCENARIOS: dict[str, Callable[[Scene], list[str]]] = {
    "it reaches Cassandra too late": partial(hold_up, requests=INSERTS),
    "its buckets are recorded too late": partial(hold_up, requests=RECORDS),
    "its machine stands still": partial(hold_up, requests=INSERTS, behind=D + S),
    "its process stands still before it undoes": stopped_before_its_undo,
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_promises_hold(scene: Scene, scenario: Callable[[Scene], list[str]]) -> None:
    """No failure of a load breaks a promise."""
    assert scenario(scene) == []


SECONDS = st.floats(0, 100)


@given(SECONDS, SECONDS, SECONDS, SECONDS.filter(bool), SECONDS.filter(bool))
def test_the_window(level_delay: float, deadline: float, delay: float, difference: float, age: float) -> None:
    """A load that begins in time has W to end in time; no lookup in use is older than its bucket record."""
    within = max(0.0, level_delay - difference)
    level = ResolvedLevel("QUORUM", "QUORUM", level_delay, deadline, within, safe=True)
    begin, end = window(0, level, delay, difference=difference, age=age)
    assert begin <= end - round(deadline * SECOND) + 1
    shorter = min(level_delay, delay)
    assert end <= max(0.0, shorter - difference) * SECOND + 1
    if shorter >= difference:
        oldest = min(age, shorter - difference)
        assert begin <= (shorter - difference - oldest) * SECOND + 1
