"""Claims: hand messages out and acknowledge them, counted as one."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial

from bench.harness import Bench, measure
from bench.load import traffic, wrk
from bench.load.cycles import CyclePlan, Dialect
from bench.load.traffic import Metered, Sample
from bench.load.wrk import BY_WRK
from bench.results import Report, Verdict, paired
from bench.started import processes, service
from queuey.messages import QueueSpec
from queuey.storage import Store, bridge

QUEUE = "bench"
CLIENTS = 32
FASTEST = 15_000
"""Single messages a second that no server here can deliver."""
REST = 0.5
"""Seconds in which a store may finish with messages that were put in before they are claimed."""
TWO, ONE = "", ", one request a message"
"""How sides are called that take two requests for a message, and one."""


def dialect(limit: int, queue: str, *, joined: bool = False) -> Dialect:
    """Returns how claims of so many messages, and their acknowledgements, are asked for; joined: in one request."""
    path = f"{service.BASE}/{queue}/claims"
    length = "Content-Length: "
    claim = f"{path}?limit={limit}&ttl=60"
    settle = traffic.request("POST", claim if joined else f"{path}/ack", "", {"Content-Type": "application/json"})
    spoken: Dialect = {
        "claim": traffic.request("POST", claim),
        # Not those that were acknowledged.
        "receipt": '"receipt":"([^"]+)","deliveries"',
        "settle": settle[: settle.index(length) + len(length)],
        "before": '{"acknowledge":[' if joined else '{"receipts":[',
        # Two values are given: the first is left out.
        "each": '%.0s"%s"',
        "after": "]}",
    }
    if joined:
        spoken["last"] = dialect(limit, queue)
    return spoken


def run(
    server: processes.Process,
    *,
    count: int,
    limit: int,
    connections: int,
    queue: str = QUEUE,
    backend: Metered | None = None,
    joined: bool = False,
) -> Sample:
    """Lets clients claim and acknowledge so many messages, perhaps in one request; see :func:`cycle`."""
    return cycle(server, dialect(limit, queue, joined=joined), count, connections, backend)


def cycle(
    server: processes.Process, spoken: Dialect, count: int, connections: int, backend: Metered | None = None
) -> Sample:
    """Lets clients, in a process of their own, claim so many messages and end the claims.

    Raises:
        Void: An answer had another status, or there were fewer messages.
    """
    plan: CyclePlan = {"port": server.port, "connections": connections, "count": count, "dialect": spoken}
    result, spent = traffic.generated(server, "bench.load.cycles", plan, 300, backend)
    return traffic.sample(result, spent, 1, result["answers"])


def filled(store: Store, more: Callable[[], Sample], count: int, queue: str = QUEUE) -> Sample:
    """Puts as many messages into a queue as are about to be claimed."""
    service.fill(store, bridge.run(store.catalogue.queue(service.APPLICATION, queue)), traffic.bodies(1000), count)
    return more()


@measure("claim100", "Claims of 100 messages and their acknowledgement")
def claim100(bench: Bench) -> Report:
    """Four clients claim from one partition."""
    count, name = bench.size(40_000, 1_000), "queuey, limit 100, 4 clients"
    directory = bench.fresh("queuey")
    with contextlib.closing(service.prepare(directory)) as store, service.serve(directory) as server:
        cycles = partial(run, server, count=count, limit=100, connections=4)
        filled(store, cycles, count)
        samples = bench.interleave({name: partial(filled, store, cycles, count)}, bench.size(5, 1))
    notes = [f"{traffic.BODY_BYTES} B bodies, one partition; messages claimed and acknowledged a second."]
    return Report("claim100", "", [traffic.row(name, samples[name])], notes=notes)


@measure("claim1", "Claims of one message and their acknowledgement, in two requests and in one")
def claim1(bench: Bench) -> Report:
    """A message takes two requests, or one that ends a claim and claims the next message."""
    directory = bench.fresh("queuey")
    with contextlib.closing(service.prepare(directory)) as store, service.serve(directory) as server:
        queue, texts = bridge.run(store.catalogue.queue(service.APPLICATION, QUEUE)), traffic.bodies(1000)
        supply = Supply(partial(service.fill, store, queue, texts))
        calls: dict[str, Callable[[], Sample]] = {
            f"queuey{way}": partial(supply.claimed_by, cycles, count)
            for way, (count, cycles) in ways(bench, server).items()
        }
        calls["queuey"]()
        samples = bench.interleave(calls, bench.size(5, 1))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    note = f"{CLIENTS} clients, {traffic.BODY_BYTES} B, one partition; messages claimed and acknowledged a second."
    return Report("claim1", "", rows, [one_over_two(samples)], [note])


@measure("claims_behind", "Claims behind a million acknowledged messages, against claims of a new queue")
def claims_behind(bench: Bench) -> Report:
    """Both queues are in one store and served by one process."""
    behind, count, ours = bench.size(1_000_000, 20_000), bench.size(4_000, 200), bench.fresh("queuey")
    numbers = itertools.count()
    with contextlib.closing(service.prepare(ours)) as store, service.serve(ours) as server:
        for _ in range(behind // 20_000):
            whole = partial(run, server, count=20_000, limit=1000, connections=4)
            filled(store, whole, 20_000)

        def of_new_queue() -> Sample:
            name = f"new-{next(numbers)}"
            bridge.run(store.catalogue.create_queue(service.APPLICATION, name, QueueSpec()))
            return filled(store, partial(run, server, count=count, limit=10, connections=4, queue=name), count, name)

        old = partial(filled, store, partial(run, server, count=count, limit=10, connections=4), count)
        calls: dict[str, Callable[[], Sample]] = {f"behind {behind:,}": old, "new queue": of_new_queue}
        samples = bench.interleave(calls, bench.size(5, 1))
    ratio = paired([run.p50 for run in samples[f"behind {behind:,}"]], [run.p50 for run in samples["new queue"]])
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    verdict = Verdict("p50 of a claim, behind / new", ratio, goal=1.2, aim=1, better="lower")
    return Report("claims_behind", "", rows, [verdict], ["4 clients, limit 10, one partition."])


@measure("dedup100", "Claims of 100 messages of a dedup queue and their acknowledgement, against a plain queue")
def dedup100(bench: Bench) -> Report:
    """All bodies differ, and all messages wait before the first is claimed, so covers are written and asked for."""
    count, ours = bench.size(40_000, 1_000), bench.fresh("queuey")
    numbers = itertools.count()
    with contextlib.closing(service.prepare(ours)) as store, service.serve(ours) as server:

        def of_new_queue(kind: str) -> Sample:
            queue, _ = bridge.run(
                store.catalogue.create_queue(service.APPLICATION, f"{kind}-{next(numbers)}", QueueSpec(kind=kind))
            )
            for at in range(0, count, 1000):
                service.fill(store, queue, [f"{at}/{text}" for text in traffic.bodies(min(1000, count - at))], 1000)
            return run(server, count=count, limit=100, connections=4, queue=queue.name)

        of_new_queue("dedup")
        calls = {kind: partial(of_new_queue, kind) for kind in ("dedup", "plain")}
        samples = bench.interleave(calls, bench.size(5, 1))
    ratio = paired(traffic.rates(samples["dedup"]), traffic.rates(samples["plain"]))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [f"4 clients, {count:,} messages of {traffic.BODY_BYTES} B wait in one partition."]
    return Report("dedup100", "", rows, [Verdict("dedup / plain", ratio, goal=0.5, aim=0.8)], notes)


def one_over_two(samples: Mapping[str, list[Sample]]) -> Verdict:
    """Compares the rate with one request for a message to that with two."""
    one, two = (traffic.rates(samples[f"queuey{way}"]) for way in (ONE, TWO))
    return Verdict("one request a message / two", paired(one, two))


def ways(
    bench: Bench, server: processes.Process, queue: str = QUEUE, backend: Metered | None = None
) -> dict[str, tuple[int, Callable[[], Sample]]]:
    """Returns how single messages are claimed from a server: how many there have to be, and what does it."""
    found: dict[str, tuple[int, Callable[[], Sample]]] = {}
    for form in (TWO, ONE):
        joined, count = form == ONE, bench.size(4_000, 200)
        asked = partial(run, server, limit=1, connections=CLIENTS, queue=queue, backend=backend, joined=joined)
        found[form] = count, partial(asked, count=count)
        if wrk.PATH is not None:
            spoken, seconds = dialect(1, queue, joined=joined), bench.pick(2, 1)
            cycles = partial(wrk.run_cycles, server, spoken, seconds=seconds, connections=CLIENTS)
            found[form + BY_WRK] = round(FASTEST * seconds), cycles
    return found


class Supply:
    """The messages that wait for runs.

    Args:
        fill: Adds so many.
    """

    def __init__(self, fill: Callable[[int], object]) -> None:
        self._fill = fill
        self._left = 0

    def claimed_by(self, cycles: Callable[[], Sample], count: int) -> Sample:
        """Makes sure that there are so many messages, and lets a run claim of them."""
        if self._left < count:
            self._fill(count - self._left)
            self._left = count
            time.sleep(REST)
        sample = cycles()
        self._left = max(0, self._left - sample.answers - CLIENTS)
        return sample
