"""Measures claims together with the acknowledgement of the claimed messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial

from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.cycles import CyclePlan, Dialect
from bench.load.traffic import Metered, Sample
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import processes, service
from queuey.storage import Store, bridge

QUEUE = "bench"
CLIENTS = 32
REST_SECONDS = 0.5
"""Seconds between adding messages and claiming them, so that the store can finish its work."""
TWO_REQUESTS, ONE_REQUEST = "", ", one request a message"
"""Suffixes of the names of sides with two requests per message, and with one."""


def make_dialect(limit: int, queue: str, *, joined: bool = False) -> Dialect:
    """Returns the dialect for claims of ``limit`` messages; ``joined`` acknowledges and claims in one request."""
    path = f"{service.BASE}/{queue}/claims"
    length = "Content-Length: "
    claim = f"{path}?limit={limit}&ttl=60"
    settle = traffic.request("POST", claim if joined else f"{path}/ack", "", {"Content-Type": "application/json"})
    result: Dialect = {
        "claim": traffic.request("POST", claim),
        # Does not match the receipts of acknowledged messages.
        "receipt": '"receipt":"([^"]+)","deliveries"',
        "settle": settle[: settle.index(length) + len(length)],
        "before": '{"acknowledge":[' if joined else '{"receipts":[',
        # Omits the first of the two values.
        "each": '%.0s"%s"',
        "after": "]}",
    }
    if joined:
        result["last"] = make_dialect(limit, queue)
    return result


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
    """Claims ``count`` messages, up to ``limit`` at a time, and acknowledges them; see :func:`run_cycles`."""
    return run_cycles(server, make_dialect(limit, queue, joined=joined), count, connections, backend)


def run_cycles(
    server: processes.Process, spoken: Dialect, count: int, connections: int, backend: Metered | None = None
) -> Sample:
    """Runs clients in a child process that claim and acknowledge ``count`` messages.

    Raises:
        Void: An answer had another status, or the queue had too few messages.
    """
    plan: CyclePlan = {"port": server.port, "connections": connections, "count": count, "dialect": spoken}
    result, spent = traffic.run_generator(server, "bench.load.cycles", plan, 300, backend)
    return traffic.make_sample(result, spent, 1, result["answers"])


def fill_and_run(store: Store, cycles: Callable[[], Sample], count: int, queue: str = QUEUE) -> Sample:
    service.fill(store, bridge.run(store.catalogue.queue(service.APPLICATION, queue)), traffic.bodies(1000), count)
    return cycles()


@measure("claim100", "Claims of 100 messages and their acknowledgement")
def measure_batch_claims(bench: Bench) -> Report:
    """Measures Queuey alone: nothing is compared."""
    count, name = bench.count(40_000, 1_000), "queuey, limit 100, 4 clients"
    directory = bench.new_directory("queuey")
    with contextlib.closing(service.prepare(directory)) as store, service.serve(directory) as server:
        cycles = partial(run, server, count=count, limit=100, connections=4)
        fill_and_run(store, cycles, count)
        samples = bench.interleave({name: partial(fill_and_run, store, cycles, count)}, bench.count(5, 1))
    notes = [f"{traffic.BODY_BYTES} B bodies, one partition; messages claimed and acknowledged a second."]
    return Report("claim100", "", [traffic.row(name, samples[name])], notes=notes)


@measure("claim1", "Claims of one message and their acknowledgement, in two requests and in one")
def measure_single_claims(bench: Bench) -> Report:
    """A message takes two requests, or one that acknowledges the previous message and claims the next."""
    directory = bench.new_directory("queuey")
    with contextlib.closing(service.prepare(directory)) as store, service.serve(directory) as server:
        queue, texts = bridge.run(store.catalogue.queue(service.APPLICATION, QUEUE)), traffic.bodies(1000)
        supply = Supply(partial(service.fill, store, queue, texts))
        calls: dict[str, Callable[[], Sample]] = {
            f"queuey{way}": partial(supply.run, cycles, count)
            for way, (count, cycles) in make_claim_runs(bench, server).items()
        }
        calls["queuey"]()
        samples = bench.interleave(calls, bench.count(5, 1))
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    note = f"{CLIENTS} clients, {traffic.BODY_BYTES} B, one partition; messages claimed and acknowledged a second."
    return Report("claim1", "", rows, [compare_ways(samples)], [note])


def compare_ways(samples: Mapping[str, list[Sample]]) -> Verdict:
    joined_rates, separate_rates = (traffic.rates(samples[f"queuey{way}"]) for way in (ONE_REQUEST, TWO_REQUESTS))
    return Verdict("one request a message / two", pairwise_ratios(joined_rates, separate_rates))


def make_claim_runs(
    bench: Bench, server: processes.Process, queue: str = QUEUE, backend: Metered | None = None
) -> dict[str, tuple[int, Callable[[], Sample]]]:
    """Returns the ways to claim single messages: the number of messages that each needs, and the call."""
    ways_by_form: dict[str, tuple[int, Callable[[], Sample]]] = {}
    for form in (TWO_REQUESTS, ONE_REQUEST):
        joined, count = form == ONE_REQUEST, bench.count(4_000, 200)
        claim_cycles = partial(run, server, limit=1, connections=CLIENTS, queue=queue, backend=backend, joined=joined)
        ways_by_form[form] = count, partial(claim_cycles, count=count)
    return ways_by_form


class Supply:
    """Keeps enough messages in the queue for runs.

    Args:
        fill: Adds this number of messages.
    """

    def __init__(self, fill: Callable[[int], object]) -> None:
        self._fill = fill
        self._left = 0

    def run(self, cycles: Callable[[], Sample], count: int) -> Sample:
        """Adds messages until the queue has ``count``, rests for :data:`REST_SECONDS` after that, runs ``cycles``."""
        if self._left < count:
            self._fill(count - self._left)
            self._left = count
            time.sleep(REST_SECONDS)
        sample = cycles()
        self._left = max(0, self._left - sample.answers - CLIENTS)
        return sample
