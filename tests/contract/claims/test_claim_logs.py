"""Claim logs: append by compare-and-set, reads, snapshots, truncation."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from queuey.model.errors import InvalidRequest, StoreClosed, StoreUnavailable
from queuey.model.messages import LogEntry, LogPage, Queue
from queuey.storage import Store, bridge
from queuey.storage.contracts.claim_logs import MAX_ENTRY_BYTES, MAX_PAGE_ENTRIES
from tests.contract.samples import append_log_entry, begin, begin_entry, call_concurrently, make_queue
from tests.waiting import join


def entries(first: int, last: int) -> list[LogEntry]:
    return [LogEntry(number, b"entry %d" % number) for number in range(first, last + 1)]


def fill(store: Store, queue: Queue, last: int, first: int = 1) -> None:
    for entry in entries(first, last):
        assert append_log_entry(store, queue, entry) is True


def read(store: Store, queue: Queue, first: int, partition: int = 1) -> LogPage:
    return begin(store.claim_logs.read_log(queue, partition, first)).result(60)


def test_appended_in_order(store: Store, other: Store) -> None:
    """Entries are numbered from 1, and every process reads them from any number on, as they were written."""
    queue = make_queue(store)
    written = [LogEntry(1, b"\0"), LogEntry(2, b"\xff\xfe"), LogEntry(3, os.urandom(50_000))]
    assert [append_log_entry(one, queue, entry) for one, entry in zip((store, other, store), written, strict=True)] == [
        True
    ] * 3
    for handle in (store, other):
        for newest in (False, True):
            for first in (1, 2, 3):
                assert bridge.run(handle.claim_logs.read_log(queue, 1, first, newest=newest)) == LogPage(
                    3, written[first - 1 :]
                )
            for first in (4, 5, 1000):
                assert bridge.run(handle.claim_logs.read_log(queue, 1, first, newest=newest)) == LogPage(3, [])


def test_refused(store: Store, other: Store) -> None:
    """Only the next number is accepted; a refused append leaves nothing, not even its snapshot's name or truncation."""
    queue = make_queue(store)
    assert append_log_entry(store, queue, LogEntry(2, b"too far")) is False
    fill(store, queue, 3)
    bridge.run(store.claim_logs.write_snapshot(queue, 1, 2, b"two"))
    for number in (1, 2, 3, 5, 1000):
        assert append_log_entry(other, queue, LogEntry(number, b"no"), snapshot=2, truncate_below=3) is False
    assert read(store, queue, 1) == LogPage(3, entries(1, 3))


def test_partitions_and_queues_are_apart(store: Store) -> None:
    """Each partition of each queue has its own log."""
    queues = [make_queue(store, partitions=3), make_queue(store, partitions=3)]
    places = [(queue, partition) for queue in queues for partition in (1, 2, 3)]
    for number, (queue, partition) in enumerate(places):
        assert append_log_entry(store, queue, LogEntry(1, b"%d" % number), partition)
    for number, (queue, partition) in enumerate(places):
        assert read(store, queue, 1, partition) == LogPage(1, [LogEntry(1, b"%d" % number)])


def test_racing_appenders(store: Store, other: Store) -> None:
    """Exactly one of many appenders of a number wins, and all of them read the same log."""
    queue = make_queue(store)
    won: dict[int, bytes] = {}

    def work(name: int) -> None:
        appender, number = (store, other)[name % 2], 1
        while number <= 12:
            body = b"%d of %d" % (number, name)
            if append_log_entry(appender, queue, LogEntry(number, body)):
                assert won.setdefault(number, body) == body, "two were told that they had won"
            page = read(appender, queue, number)
            number = page.entries[-1].number + 1
        assert read(appender, queue, 1).last >= 12

    call_concurrently(work, range(6))
    page = read(store, queue, 1)
    assert {entry.number: entry.body for entry in page.entries} == won
    assert [entry.number for entry in page.entries] == list(range(1, page.last + 1))
    assert read(other, queue, 1) == page


def test_long_logs_come_in_pages(store: Store) -> None:
    """A page has a limited number of entries, and says how far the log goes."""
    queue = make_queue(store)
    fill(store, queue, MAX_PAGE_ENTRIES + 3)
    page = read(store, queue, 1)
    assert page == LogPage(MAX_PAGE_ENTRIES + 3, entries(1, MAX_PAGE_ENTRIES))
    assert read(store, queue, MAX_PAGE_ENTRIES + 1) == LogPage(
        MAX_PAGE_ENTRIES + 3, entries(MAX_PAGE_ENTRIES + 1, MAX_PAGE_ENTRIES + 3)
    )


def test_snapshots(store: Store, other: Store) -> None:
    """Once an entry has named a snapshot, new readers get it with the entries above it."""
    queue = make_queue(store)
    fill(store, queue, 4)
    bridge.run(store.claim_logs.write_snapshot(queue, 1, 3, b"up to three"))
    assert read(other, queue, 1) == LogPage(4, entries(1, 4))
    assert append_log_entry(store, queue, LogEntry(5, b"entry 5"), snapshot=3)
    fill(store, queue, 6, first=6)
    for handle in (store, other):
        for newest in (False, True):
            expected = LogPage(6, entries(4, 6), LogEntry(3, b"up to three"))
            assert bridge.run(handle.claim_logs.read_log(queue, 1, 1, newest=newest)) == expected
            assert bridge.run(handle.claim_logs.read_log(queue, 1, 3, newest=newest)) == LogPage(6, entries(3, 6))
    assert read(store, queue, 7) == LogPage(6, [])


def test_newer_snapshots_replace_older(store: Store, other: Store) -> None:
    """The log names only the newest snapshot; long ones are kept byte for byte, and writing one twice does no harm."""
    queue = make_queue(store)
    fill(store, queue, 3)
    bodies = {number: os.urandom(700_000) for number in (1, 2)}
    for number, body in bodies.items():
        for handle in (store, other):
            bridge.run(handle.claim_logs.write_snapshot(queue, 1, number, body))
    for number, body in bodies.items():
        assert append_log_entry(store, queue, LogEntry(3 + number, b"entry %d" % (3 + number)), snapshot=number)
        assert read(other, queue, 1) == LogPage(3 + number, entries(number + 1, 3 + number), LogEntry(number, body))


def test_truncation(store: Store, other: Store) -> None:
    """Truncated entries are gone; a reader that asks for them gets the snapshot and the entries after it."""
    queue = make_queue(store)
    fill(store, queue, 8)
    bridge.run(store.claim_logs.write_snapshot(queue, 1, 6, b"six"))
    assert append_log_entry(store, queue, LogEntry(9, b"entry 9"), snapshot=6, truncate_below=5)
    expected = LogPage(9, entries(7, 9), LogEntry(6, b"six"))
    for handle in (store, other):
        assert [read(handle, queue, first) for first in (1, 2, 4)] == [expected] * 3
        assert [read(handle, queue, first) for first in (5, 8)] == [LogPage(9, entries(first, 9)) for first in (5, 8)]
    assert append_log_entry(other, queue, LogEntry(10, b"entry 10"), truncate_below=7)
    assert read(store, queue, 5) == LogPage(10, entries(7, 10), LogEntry(6, b"six"))
    assert append_log_entry(store, queue, LogEntry(10, b"again")) is False
    fill(other, queue, 12, first=11)


def test_purge_and_delete_empty_the_log(store: Store) -> None:
    """A purged queue begins a new log, and so does a new queue with a deleted one's name."""
    queue = make_queue(store)
    fill(store, queue, 3)
    bridge.run(store.claim_logs.write_snapshot(queue, 1, 2, b"two"))
    assert append_log_entry(store, queue, LogEntry(4, b"entry 4"), snapshot=2)
    purged = bridge.run(store.catalogue.purge_queue(queue))
    assert read(store, purged, 1) == LogPage(0, [])
    fill(store, purged, 2)
    bridge.run(store.catalogue.delete_queue(purged))
    again = make_queue(store, queue.name)
    assert read(store, again, 1) == LogPage(0, [])
    assert append_log_entry(store, again, LogEntry(1, b"entry 1")) is True


def test_bad_input(store: Store) -> None:
    """Invalid partitions, and bodies that are too long or empty, are refused with a named error and change nothing."""
    queue = make_queue(store, partitions=2)
    for partition in (0, -1, 3):
        with pytest.raises(InvalidRequest, match="partition"):
            append_log_entry(store, queue, LogEntry(1, b"x"), partition)
        with pytest.raises(InvalidRequest, match="partition"):
            bridge.run(store.claim_logs.read_log(queue, partition, 1))
        with pytest.raises(InvalidRequest, match="partition"):
            bridge.run(store.claim_logs.write_snapshot(queue, partition, 1, b"x"))
    for body in (b"", b"x" * (MAX_ENTRY_BYTES + 1)):
        with pytest.raises(InvalidRequest, match="entry"):
            append_log_entry(store, queue, LogEntry(1, body))
    with pytest.raises(InvalidRequest, match="snapshot"):
        bridge.run(store.claim_logs.write_snapshot(queue, 1, 1, b""))
    assert [read(store, queue, 1, partition) for partition in (1, 2)] == [LogPage(0, [])] * 2


def test_closing(store: Store, open_store: Callable[[], Store]) -> None:
    """Every append that was begun is answered, also if the closing store has no time for it."""
    queue = make_queue(store, partitions=20)
    closing = open_store()
    assert bridge.run(closing.catalogue.queue(queue.application, queue.name)) == queue
    answers = [begin_entry(closing, queue, LogEntry(1, b"mine"), partition) for partition in range(1, 21)]
    closer = threading.Thread(target=closing.close)
    closer.start()
    for partition, answer in enumerate(answers, 1):
        try:
            assert answer.result(60) is True
        except StoreUnavailable as error:
            assert error.outcome == "unknown" or read(store, queue, 1, partition).last == 0  # noqa: PT017
    join(closer)
    with pytest.raises(StoreClosed):
        append_log_entry(closing, queue, LogEntry(2, b"late"))
