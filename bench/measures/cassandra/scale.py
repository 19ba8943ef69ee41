"""Measures how costs on Cassandra grow with many queues, long queues, and deleted or expired messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlencode

from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.load.traffic import Job, Sample
from bench.measures.over_http import BATCH, CONNECTIONS
from bench.measures.scale import MAX_FLAT_RATIO, compare_places, compare_sizes
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service
from bench.started.processes import Process
from queuey import ids
from queuey.ids import Position
from queuey.messages import Message, NewMessage, Queue, QueueSpec, Slice
from queuey.storage import Store, bridge

THOUSAND = 1000
SPAN_SECONDS = 71 * 3600
"""Seconds over which the messages of a long queue are spread: a little less than three days."""
LOW = ids.random_low()
TTL = 4 * 86_400
"""TTL of these messages in seconds; none expires during the measure."""
LOADERS = 4
MAX_COST_RATIO = 1.5
"""Max cost of a read behind removed messages, as a multiple of a read without them."""
LIVE_MESSAGES = 1000
LOOK_UP_INTERVAL = 2.0
"""Seconds after which a process looks up a queue again."""


@measure("cassandra-queues", "Creating, listing and reading idle queues on Cassandra, when there are few and when many")
def compare_many_queues(bench: Bench) -> Report:
    """Fills two keyspaces on one node over HTTP; also compares the first thousand creations with the last."""
    few, many = bench.count(THOUSAND, 150), bench.count(100_000, 400)
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        servers: dict[int, Process] = {}
        rates: dict[str, Sample] = {}
        for size in (few, many):
            keyspace = f"queues_{size}"
            on_cassandra.prepare(cassandra, keyspace).close()
            server = stack.enter_context(
                on_cassandra.serve(cassandra, bench.new_directory("queuey"), keyspace=keyspace)
            )
            servers[size] = server
            rates = create_all(server, size, few)
            bench.print_progress(f"{size:,} queues are there")
        report = compare_sizes(bench, servers)
    rows = [
        Row(f"creating {what}", [sample.rate], "queues/s", {"p50 ms": sample.p50}) for what, sample in rates.items()
    ]
    ratio = Verdict(
        f"creations a second: first {few:,} / last {few:,}",
        [rates["the first"].rate / rates["the last"].rate],
        goal=MAX_FLAT_RATIO,
        better="lower",
    )
    notes = [*report.notes, f"Creations a second over {CONNECTIONS} connections."]
    return Report("", "", [*rows, *report.rows], [ratio, *report.verdicts], notes)


def create_all(server: Process, size: int, part: int) -> dict[str, Sample]:
    """Creates queues over many connections.

    Returns a sample of the first ``part`` queues; if there are more, also of the last ones and of those between.
    """
    ranges = {"the first": range(part)}
    if size > part:
        ranges |= {"those between": range(part, size - part), "the last": range(size - part, size)}
    return {
        what: traffic.run(server, make_creations(numbers), seconds=600, warm=0, count=len(numbers))
        for what, numbers in ranges.items()
    }


def make_creations(numbers: range) -> Job:
    """Returns creations of numbered queues, and of spare ones: the generator sends a few more than it counts."""
    names = [f"q{number:07d}" for number in numbers]
    spare = [f"spare{numbers.start}-{number}" for number in range(2 * CONNECTIONS)]
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return Job(
        [
            traffic.request("POST", service.BASE, urlencode({"queue_name": name, "partitions": 1}), form)
            for name in names + spare
        ],
        201,
    )


@measure(
    "cassandra-deep", "Reading 100 messages at the head, in the middle and at the tail of a long queue on Cassandra"
)
def measure_long_queue(bench: Bench) -> Report:
    """Reads the messages of three days, which are in many buckets, and counts the requests of an idle queue's read."""
    count = bench.count(5_000_000, 10_000)
    with nodes.cassandra(bench) as cassandra:
        store = on_cassandra.prepare(cassandra)
        queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
        positions = load_over_three_days(store, queue, count)
        bench.print_progress(f"{count:,} messages are there")
        probes = count_idle_requests(store)
        store.close()
        with on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server:
            report = compare_places(
                bench, server, [ids.to_hex(position) for position in positions[:-BATCH:BATCH]], count
            )
    return Report("", "", [*report.rows, *probes[0]], [*report.verdicts, *probes[1]], report.notes)


def load_over_three_days(store: Store, queue: Queue, count: int) -> list[Position]:
    first = ids.now_ticks() - SPAN_SECONDS * ids.TICKS_PER_SECOND
    step = SPAN_SECONDS * ids.TICKS_PER_SECOND // count
    texts = traffic.bodies(THOUSAND)

    def message(number: int) -> Message:
        ticks = first + number * step
        return Message(ticks, LOW, 1, ticks + TTL * ids.TICKS_PER_SECOND, texts[number % THOUSAND])

    def load(number: int) -> int:
        return bridge.run(
            store.bulk.load(queue, map(message, range(count * number // LOADERS, count * (number + 1) // LOADERS)))
        )

    with ThreadPoolExecutor(LOADERS) as pool:
        if sum(pool.map(load, range(LOADERS))) != count:
            raise Void("not all messages were loaded")
    return [(first + number * step, LOW) for number in range(count)]


@measure("cassandra-deletes", "Reading on Cassandra behind messages that were deleted, have expired or were purged")
def measure_removed_messages(bench: Bench) -> Report:
    """Each queue has the same few live messages; all but one had many more before them."""
    removed = bench.count(100_000, 5000)
    seconds = bench.duration(1, 0.3)
    with nodes.cassandra(bench) as cassandra:
        store = on_cassandra.prepare(cassandra, queues=PASTS)
        firsts = {name: past(store, name, removed) for name, past in PASTS.items()}
        for name in PASTS:
            service.fill(
                store,
                bridge.run(store.catalogue.queue(service.APPLICATION, name)),
                traffic.bodies(LIVE_MESSAGES),
                LIVE_MESSAGES,
            )
        on_cassandra.let_appear(store, bridge.run(store.catalogue.queue(service.APPLICATION, "untouched")))
        store.close()
        calls: dict[str, Callable[[], Sample]] = {}
        with on_cassandra.serve(cassandra, bench.new_directory("queuey")) as server:
            for name, first in firsts.items():
                path = f"{service.BASE}/{name}?limit={BATCH}"
                for what, job in {"head": path, "from a cursor": f"{path}&since={ids.to_hex(first)}"}.items():
                    run = partial(traffic.run, server, traffic.gets([job], BATCH), connections=1, seconds=seconds)
                    calls[f"{name}, {what}"] = run
                    run()
            samples = bench.interleave(calls, bench.count(5, 1))
    costs = {name: [sample.p50 for sample in runs] for name, runs in samples.items()}
    verdicts = [
        Verdict(f"{name}, {what} / untouched", ratios, goal=MAX_COST_RATIO, better="lower")
        for name in PASTS
        if name != "untouched"
        for what in ("head", "from a cursor")
        for ratios in (pairwise_ratios(costs[f"{name}, {what}"], costs[f"untouched, {what}"]),)
    ]
    note = f"{LIVE_MESSAGES:,} live messages in each queue, {removed:,} others before them; time of a GET of {BATCH}."
    return Report("", "", [Row(name, values, "ms") for name, values in costs.items()], verdicts, [note])


def append_many(store: Store, name: str, count: int, ttl: int = service.THREE_DAYS) -> list[Position]:
    """Appends at least ``count`` messages, in batches of 1,000, to an existing queue; returns their positions."""
    queue, texts = bridge.run(store.catalogue.queue(service.APPLICATION, name)), traffic.bodies(THOUSAND)
    positions: list[Position] = []
    for _ in range(0, count, THOUSAND):
        positions += bridge.run(store.messages.append(queue, [NewMessage(text, 1, ttl) for text in texts]))
    return positions


def leave_empty(store: Store, name: str, count: int) -> Position:
    """Leaves the queue empty; returns the current time as a cursor."""
    return ids.now_ticks(), LOW


def post_and_delete(store: Store, name: str, count: int) -> Position:
    positions = append_many(store, name, count)
    queue = bridge.run(store.catalogue.queue(service.APPLICATION, name))
    for start in range(0, count, THOUSAND):
        bridge.run(store.messages.delete(queue, [(1, position) for position in positions[start : start + THOUSAND]]))
    return positions[0]


def post_and_expire(store: Store, name: str, count: int) -> Position:
    """Appends messages with a TTL of a second, and waits until they have expired."""
    positions = append_many(store, name, count, ttl=1)
    time.sleep(4)
    return positions[0]


def post_and_purge(store: Store, name: str, count: int) -> Position:
    positions = append_many(store, name, count)
    bridge.run(store.catalogue.purge_queue(bridge.run(store.catalogue.queue(service.APPLICATION, name, fresh=True))))
    return positions[0]


PASTS: dict[str, Callable[[Store, str, int], Position]] = {
    "untouched": leave_empty,
    "deleted": post_and_delete,
    "expired": post_and_expire,
    "purged": post_and_purge,
}
"""Each adds messages to a queue and removes them; returns the position of the first, as a cursor."""


def count_idle_requests(store: Store) -> tuple[list[Row], list[Verdict]]:
    queue, _ = bridge.run(store.catalogue.create_queue(service.APPLICATION, "idle", QueueSpec()))
    cold, warm = [], []
    for _ in range(3):
        time.sleep(LOOK_UP_INTERVAL)
        cold.append(count_requests_of_read(store, queue))
        warm.append(count_requests_of_read(store, queue))
    rows = [
        Row("idle queue, looked up and read", cold, "requests"),
        Row("idle queue, read again at once", warm, "requests"),
    ]
    return rows, [Verdict("probes of a read of an idle queue", warm, "requests", goal=2, better="lower")]


def count_requests_of_read(store: Store, queue: Queue) -> float:
    """Returns the number of requests to Cassandra that one read makes.

    Raises:
        Void: The queue is not empty.
    """
    before = bridge.run(store.statistics())["store_requests_total"]
    (page,) = bridge.run(store.messages.read(queue, [Slice(1)]))
    if page.messages:
        raise Void("the idle queue has messages")
    return bridge.run(store.statistics())["store_requests_total"] - before
