"""What scans of a partition find: each message that becomes visible late, however many known ones are around it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from queuey import ids
from queuey.claims import MOST_ABOVE, ClaimReceipt, ClaimTiming, EntryDraft, Poll, State
from queuey.claims.drafts import MOST_IDS
from queuey.ids import Position
from queuey.messages import Message, Page, Slice
from queuey.service.claims import scans
from queuey.service.claims.duplicates import _all_of_them
from queuey.service.claims.partition_log import WORTH
from queuey.service.claims.scans import CHAIN, CHAIN_EVERY, CHAIN_SOON, PAGE, Read, Scanner, ScanResult, advance_cursor
from tests.replacing import replace_in

NOW = 1_750_000_000_000
START = ids.seconds_to_ticks(NOW / 1000 - 60)
HORIZON = ids.seconds_to_ticks(NOW / 1000 - 1)
BYTES = 100
"""Of the bodies of a page."""
SHORT = 20
"""What stands for a chain's length here."""


class Partition:
    """Messages in order, of which a process knows all but some; and polls of this process.

    Args:
        count: How many messages have been there for longer than the read delay.
        late: Which of them nobody has seen yet.
        size: Bytes of a body.
        leaves_out: Whether the store leaves bodies out where they are not of interest.
    """

    def __init__(self, count: int, late: Sequence[int], *, size: int = 10, leaves_out: bool = True) -> None:
        self.body = "x" * size
        self.leaves_out = leaves_out
        self.messages = [self.message(START + number) for number in range(count)]
        self.late = {self.messages[number].position for number in late}
        self.reads: list[Slice] = []
        self.state = State()
        self.now = 100.0
        self.horizon = HORIZON
        self.scanner = Scanner(1, lambda: self.now, BYTES)
        known = [message for message in self.messages if message.position not in self.late]
        for at in range(0, len(known), MOST_IDS):
            self.give(known[at : at + MOST_IDS])
        self.scanner.claimed([message.position for message in self.messages])
        self.run(self.scanner.look(self.read))

    def add_new(self, count: int) -> None:
        """Stores messages just now."""
        self.messages += [self.message(HORIZON + number) for number in range(count)]

    def message(self, ticks: int) -> Message:
        """One that is stored at an instant."""
        return Message(ticks, 0, 1, ids.TICKS_MAX, self.body)

    async def read(self, part: Slice) -> Page:
        """Reads a slice as a store does."""
        self.reads.append(part)
        bare = self.leaves_out and not part.bodies
        page, weight = Page([], self.horizon, part.upper, more=False), 0
        for message in self.messages:
            if part.lower <= message.position < part.upper:
                page.messages.append(replace(message, body="") if bare else message)
                weight += len(page.messages[-1].body)
                if len(page.messages) >= part.limit or weight >= part.max_bytes:
                    page.next, page.more = ids.following(message.position), True
                    break
        return page

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
        """Runs a call that waits for nothing."""
        try:
            call.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits")

    def scan(self, wanted: int) -> ScanResult:
        """Scans, and writes an entry if there is something for it."""
        reading: Read = self.read
        found: ScanResult = self.run(self.scanner.scan(self.state, NOW, wanted, 1 << 30, reading, _all_of_them))
        self.give(found.fresh[:wanted], found)
        self.scanner.passed(self.state, found)
        return found

    def settle(self) -> None:
        """Acknowledges what was delivered."""
        draft = EntryDraft(self.state, NOW, ClaimTiming())
        draft.acknowledge(
            [ClaimReceipt(1, *position, each.number) for position, each in self.state.outstanding.items()]
        )
        self.state.apply(self.state.number + 1, draft.entry(1))

    def give(self, messages: Sequence[Message], found: ScanResult | None = None) -> None:
        """Delivers messages, and moves the cursor."""
        draft = EntryDraft(self.state, NOW, ClaimTiming())
        draft.deliver([Poll(len(messages), 60, 1 << 30)], [], messages)
        passed = 0 if found is None else advance_cursor(draft, found.chain)
        if draft.changes or passed >= WORTH * SHORT // CHAIN:
            self.state.apply(self.state.number + 1, draft.entry(1))


def positions(messages: Sequence[Message]) -> list[Position]:
    """Where they are."""
    return [message.position for message in messages]


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    """Reads and chains are a hundredth as long."""
    assert CHAIN >= WORTH, "a chain that is cut short is worth an entry"
    with replace_in(scans, PAGE, PAGE // 100), replace_in(scans, CHAIN, SHORT):
        yield


@given(
    count=st.integers(1, 4 * SHORT),
    late=st.sets(st.integers(0, 4 * SHORT - 1), max_size=12),
    size=st.sampled_from([1, BYTES // 12, BYTES // 3, BYTES]),
    leaves_out=st.booleans(),
    wanted=st.sampled_from([1, 5, 100]),
)
def test_what_is_late_is_found(count: int, late: set[int], size: int, wanted: int, *, leaves_out: bool) -> None:
    """With its body, in order, whatever a page holds, by polls after which an entry is not always written."""
    partition = Partition(count, sorted(each for each in late if each < count), size=size, leaves_out=leaves_out)
    delivered: list[Message] = []
    for _ in range(30):
        found = partition.scan(wanted)
        assert positions(found.fresh) == sorted(set(positions(found.fresh)))
        delivered += found.fresh[:wanted]
        partition.now += CHAIN_EVERY
    assert {message.position for message in delivered} == partition.late
    assert all(message.body == partition.body for message in delivered)


@pytest.mark.parametrize("at", [0, 1, SHORT, 2 * SHORT + 5])
def test_a_poll_that_would_get_less_looks_through_all(at: int) -> None:
    """It finds what is late at once, though it has to pass more than a chain of known messages before."""
    partition = Partition(3 * SHORT, [at])
    assert positions(partition.scan(1).fresh) == list(partition.late)


def test_a_poll_that_gets_enough_does_not_wait_for_a_long_chain() -> None:
    """It reads a part of what is known; the next polls go on, so that what is late is found."""
    partition = Partition(3 * SHORT, [2 * SHORT + 5])
    partition.add_new(50)
    for _ in range(2):
        partition.reads.clear()
        before = partition.state.cursor
        assert not partition.late & set(positions(partition.scan(10).fresh))
        assert [part.bodies for part in partition.reads] == [False, False, True]
        assert partition.state.cursor > before
        partition.now += CHAIN_SOON
    assert partition.late <= set(positions(partition.scan(10).fresh))


def test_bodies_are_read_from_the_first_unknown_message_on() -> None:
    """What is before it is read for the positions only."""
    partition = Partition(SHORT, [7])
    partition.reads.clear()
    partition.scan(1)
    unknown = partition.messages[7].position
    assert [part.bodies for part in partition.reads] == [False, True]
    assert partition.reads[0].lower < unknown == partition.reads[1].lower


def test_a_chain_that_goes_on_keeps_to_its_first_horizon() -> None:
    """A message that becomes visible between two of its reads is not passed, though the clock was ahead before."""
    partition = Partition(3 * SHORT, [15])
    hidden = partition.messages.pop(15)
    partition.horizon = START + 12

    async def read(part: Slice) -> Page:
        if len(partition.reads) == SHORT // (PAGE // 100) + 1:
            partition.messages.insert(15, hidden)
            partition.horizon = HORIZON
        return await plain(part)

    plain = partition.read
    partition.read = read  # type: ignore[method-assign]
    partition.reads.clear()
    found = partition.scan(1)
    assert len(partition.reads) > SHORT // (PAGE // 100) + 1
    assert not found.fresh
    assert partition.state.cursor < hidden.position
    assert positions(partition.scan(1).fresh) == [hidden.position]


def test_much_that_is_remembered_moves_the_cursor() -> None:
    """However many new messages there are, polls pass all that is known when that is much."""
    partition = Partition(3 * SHORT, [])
    partition.add_new(50)
    with replace_in(scans, MOST_ABOVE, 5 * SHORT):
        partition.settle()
        partition.scan(10)
    assert partition.state.cursor >= partition.messages[3 * SHORT - 1].position
