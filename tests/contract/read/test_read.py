"""Reading slices: bounds, order, limits and the semantics of a page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.messages import Message, Meta, Queue, Slice, bytes_of, rendered_bytes
from queuey.storage import Store, bridge
from tests import strategies
from tests.contract.samples import (
    append_bodies,
    bodies,
    fill_queue,
    make_queue,
    messages_in_partition,
    new_message,
    pages,
    positions,
    read_one,
)

PAST = ids.EPOCH_TICKS + 10**16


def test_page_ends_with_the_message_that_fills_it(store: Store) -> None:
    """The bytes of messages in an answer are summed up to ``max_bytes``: the message that reaches it is the last."""
    queue = fill_queue(store, *["x" * 100] * 200)
    each = rendered_bytes("x" * 100, None)
    for most, expected in [(1, 1), (each - 1, 1), (each, 1), (each + 1, 2), (33 * each, 33), (64 * each + 1, 65)]:
        for descending in (False, True):
            page = read_one(store, queue, Slice(partition=1, limit=1000, max_bytes=most, descending=descending))
            assert (len(page.messages), page.more) == (expected, True)
    page = read_one(store, queue, Slice(partition=1, limit=1000, max_bytes=200 * each + 1))
    assert (len(page.messages), page.more) == (200, False)


BODIES = ["x", "\x01" * 500, '"\\' * 300, "\U0001f409" * 200, "ü\n" * 250, b"\xff" * 700, "x" * 5000]
"""Characters of every kind."""
METAS = [None, Meta(headers=(("a", "x" * 8000),)), Meta("text/plain", (("b", '"' * 50),)), Meta(json=True)]


@pytest.mark.parametrize(("body", "meta"), [*zip(BODIES, METAS * 2, strict=False)], ids=range(len(BODIES)))
def test_a_page_ends_by_what_its_messages_take_in_an_answer(store: Store, body: str | bytes, meta: Meta | None) -> None:
    """The bytes of a message count escapes, characters of several bytes, base64, headers and the text around a body."""
    queue = make_queue(store)
    bridge.run(
        store.messages.append(queue, [new_message("short"), *[new_message(body, meta=meta)] * 20, new_message("short")])
    )
    weights = [rendered_bytes("short", None), rendered_bytes(body, meta)]
    for count in (1, 2, 7):
        for descending in (False, True):
            most = weights[0] + count * weights[1]
            page = read_one(store, queue, Slice(partition=1, max_bytes=most, descending=descending))
            assert (len(page.messages), page.more) == (1 + count, True)


@pytest.mark.parametrize("descending", [False, True])
def test_slices_of_one_read_share_their_bytes(store: Store, descending: bool) -> None:  # noqa: FBT001
    """Partitions whose messages exceed the shared byte limit of all slices are put off, and can be read next."""
    queue = make_queue(store, partitions=12)
    bridge.run(
        store.messages.append(queue, [new_message("x" * 10_000, partition=partition) for partition in range(1, 13)])
    )
    pending = [Slice(partition, max_bytes=3000, descending=descending) for partition in range(1, 13)]
    partitions: list[int] = []
    while pending:
        pages_ = bridge.run(store.messages.read(queue, pending))
        messages = [message for page in pages_ for message in page.messages]
        assert bytes_of(messages[:-1]) < 3000 * len(pending)
        assert messages
        partitions += [message.partition for message in messages]
        put_off = [
            part for part, page in zip(pending, pages_, strict=True) if page == part.make_postponed_page(page.horizon)
        ]
        assert pending[0] not in put_off
        pending = put_off
    assert sorted(partitions) == list(range(1, 13))


@pytest.mark.parametrize("descending", [False, True])
def test_ids_alone(store: Store, descending: bool) -> None:  # noqa: FBT001
    """Without bodies a page has positions, up to its limit, and continues behind them."""
    queue = make_queue(store)
    positions = append_bodies(store, queue, *["x" * 1000] * 5)
    expected = positions[::-1] if descending else positions
    page = read_one(store, queue, Slice(1, limit=3, max_bytes=1, descending=descending, bodies=False))
    assert [message.position for message in page.messages] == expected[:3]
    assert not any(message.body for message in page.messages)
    assert page.next is not None
    lower, upper = (ids.FIRST, ids.following(page.next)) if descending else (page.next, ids.LAST)
    page = read_one(store, queue, Slice(1, lower, upper, limit=3, max_bytes=1, descending=descending, bodies=False))
    assert ([message.position for message in page.messages], page.more) == (expected[3:], False)


def test_partition_outside_the_queue(store: Store) -> None:
    """Partitions beyond the queue's give empty pages, and never another queue's messages."""
    queue = make_queue(store, partitions=2)
    for neighbour in [make_queue(store, partitions=2) for _ in range(3)]:
        append_bodies(store, neighbour, "x")
        append_bodies(store, neighbour, "x", partition=2)
    for partition, descending in itertools.product([0, -1, 3, 200, 256, 257], [False, True]):
        page = read_one(store, queue, Slice(partition=partition, descending=descending))
        assert (page.messages, page.more) == ([], False)


def test_several_slices_have_one_horizon(store: Store) -> None:
    """Slices of one call are answered in order, each by its own page, all below the same horizon."""
    queue = make_queue(store, partitions=3)
    for number in (1, 2, 3):
        append_bodies(store, queue, *(f"{number}{letter}" for letter in "abc"), partition=number)
    slices = [
        Slice(partition=3, limit=1),
        Slice(partition=1, descending=True),
        Slice(partition=9),
        Slice(partition=3, limit=2, descending=True),
        Slice(partition=2),
        Slice(partition=3, limit=1),
    ]
    pages = bridge.run(store.messages.read(queue, slices))
    assert [bodies(page.messages) for page in pages] == [
        ["3a"],
        ["1c", "1b", "1a"],
        [],
        ["3c", "3b"],
        ["2a", "2b", "2c"],
        ["3a"],
    ]
    assert len({page.horizon for page in pages}) == 1
    assert all(
        message.partition == part.partition
        for part, page in zip(slices, pages, strict=True)
        for message in page.messages
    )


def check_chain(store: Store, queue: Queue, part: Slice, sizes: Iterator[int], expected: list[Message]) -> None:
    seen: list[Message] = []
    for page in pages(store, queue, part, sizes):
        assert len(page.messages) > 0 or not page.more
        seen += page.messages
        rest = expected[len(seen) :]
        assert page.more or rest == []
        if part.descending and rest:
            assert page.next is not None
            assert rest[0].position <= page.next < seen[-1].position
        elif rest:
            assert page.next is not None
            assert seen[-1].position < page.next <= rest[0].position
    assert seen == expected


@strategies.ON_STORES
@given(
    st.lists(st.sampled_from(["put", "append", "gap"]), max_size=40),
    st.lists(st.integers(1, 9), min_size=1, max_size=10),
    st.integers(1, 60),
    st.booleans(),
    st.data(),
)
def test_any_chain_of_pages_equals_one_read(
    store: Store,
    steps: list[str],
    sizes: list[int],
    most: int,
    descending: bool,  # noqa: FBT001 - given by hypothesis
    data: st.DataObject,
) -> None:
    """Pages of any limits, in either direction and any bounds, give the messages of one read, each once."""
    queue = make_queue(store)
    for number, step in enumerate(steps):
        if step == "append":
            append_bodies(store, queue, *["x" * (number % 7 + 1)] * (number % 4 + 1))
        elif step == "put":
            place = (PAST + number // 3, number % 3 - 1)
            bridge.run(store.messages.put(queue, [(1, place)], new_message("y" * (number % 5 + 1))))
        elif messages := messages_in_partition(store, queue):
            bridge.run(store.messages.delete(queue, [(1, message.position) for message in messages[:: number % 3 + 2]]))
    everything = messages_in_partition(store, queue)
    edges = st.sampled_from([ids.FIRST, ids.LAST, *positions(everything)])
    lower, upper = data.draw(edges), data.draw(edges)
    expected = [message for message in everything if lower <= message.position < upper]
    part = Slice(partition=1, lower=lower, upper=upper, limit=sizes[0], max_bytes=most, descending=descending)
    check_chain(store, queue, part, itertools.cycle(sizes), expected[::-1] if descending else expected)
