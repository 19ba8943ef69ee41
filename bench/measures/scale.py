"""Measures how costs grow with many queues, long queues, and much expiry."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from urllib.parse import urlencode

from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.load.traffic import Job, Sample
from bench.measures.over_http import QUEUE
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import service
from bench.started.processes import Process
from queuey.console import cookies
from queuey.service.operating.credentials import Sessions
from queuey.storage import bridge

MAX_PAGE_MILLISECONDS = 100.0
"""Max p99 of a page of the console, in milliseconds."""
MAX_FLAT_RATIO = 2.0
"""Max ratio of the highest to the lowest cost that counts as flat."""


@measure("queues", "Creating, listing and reading idle queues when there are few and when there are many")
def measure_many_queues(bench: Bench) -> Report:
    """Uses one connection, so that a figure is a latency. Every request names another queue or page."""
    sizes = [500, 2_000] if bench.quick else [1_000, 100_000, 1_000_000]
    with contextlib.ExitStack() as stack:
        servers: dict[int, Process] = {}
        for size in sizes:
            directory = bench.new_directory(f"queues-{size}")
            service.prepare(directory).close()
            service.fill_queues(directory, size)
            bench.print_progress(f"{size:,} queues are there")
            servers[size] = stack.enter_context(service.serve(directory))
        return compare_sizes(bench, servers)


def compare_sizes(bench: Bench, servers: Mapping[int, Process]) -> Report:
    """Compares services by their number of queues (``q0000000`` and so on); the fewest come first, the most last."""
    seconds = bench.duration(1, 0.3)
    calls: dict[tuple[str, int], Callable[[], Sample]] = {}
    for size, server in servers.items():
        for action, make in ACTIONS.items():
            calls[action, size] = partial(run_new_job, server, make, size, bench.rng, seconds)
            calls[action, size]()
    samples = bench.interleave(calls_by_name(calls), bench.count(5, 1))
    fewest, *_, most = servers
    rows, verdicts = [], []
    for action in ACTIONS:
        costs = {size: [sample.p50 for sample in samples[f"{action}, {size:,} there"]] for size in servers}
        rows += [Row(f"{action}, {size:,} there", values, "ms") for size, values in costs.items()]
        ratios = pairwise_ratios(costs[most], costs[fewest])
        verdicts.append(Verdict(f"{action}: {most:,} / {fewest:,}", ratios, goal=MAX_FLAT_RATIO, better="lower"))
    return Report("", "", rows, verdicts, ["Medians of the time of a request over one connection."])


@measure("scattered", "POST of one message to one queue, and to any of very many that are not in memory")
def compare_scattered_posts(bench: Bench) -> Report:
    """Uses 64 connections. Every request of the second side names another queue, far more than the cache holds."""
    size = bench.count(200_000, 5_000)
    seconds = bench.duration(2.5, 0.3)
    directory = bench.new_directory("queuey")
    service.prepare(directory).close()
    service.fill_queues(directory, size)
    (text,) = traffic.bodies(1)
    paths = [f"{service.BASE}/q{bench.rng.randrange(size):07d}" for _ in range(50_000)]
    scattered_posts = Job([request for path in paths for request in traffic.posts_of_one(path, [text]).requests], 201)
    together = traffic.posts_of_one(QUEUE, [text])
    with service.serve(directory) as server:
        calls: dict[str, Callable[[], Sample]] = {
            "one queue": partial(traffic.run, server, together, seconds=seconds),
            f"any of {size:,}": partial(traffic.run, server, scattered_posts, seconds=seconds),
        }
        samples = bench.interleave(calls, bench.count(5, 1))
    one, many = samples
    ratio = pairwise_ratios(traffic.rates(samples[many]), traffic.rates(samples[one]))
    return Report(
        "scattered",
        "",
        [traffic.row(name, runs) for name, runs in samples.items()],
        [Verdict(f"{many} / {one}", ratio)],
    )


def calls_by_name(calls: dict[tuple[str, int], Callable[[], Sample]]) -> dict[str, Callable[[], Sample]]:
    return {f"{action}, {size:,} there": call for (action, size), call in calls.items()}


def run_new_job(
    server: Process, make: Callable[[int, random.Random], Job], size: int, rng: random.Random, seconds: float
) -> Sample:
    """Builds the job anew, so that every run names other queues, and runs it."""
    return traffic.run(server, make(size, rng), seconds=seconds, connections=1, warm=0.1)


def make_creations(size: int, rng: random.Random) -> Job:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    bodies = [urlencode({"queue_name": f"n{rng.getrandbits(60):x}"}) for _ in range(20_000)]
    return Job([traffic.request("POST", service.BASE, body, form) for body in bodies], 201)


def make_listings(size: int, rng: random.Random) -> Job:
    return traffic.gets(
        [f"{service.BASE}?limit=100&offset=q{rng.randrange(size - 100):07d}" for _ in range(5000)], messages=100
    )


def make_idle_reads(size: int, rng: random.Random) -> Job:
    return traffic.gets([f"{service.BASE}/q{rng.randrange(size):07d}" for _ in range(20_000)])


ACTIONS: dict[str, Callable[[int, random.Random], Job]] = {
    "creating a queue": make_creations,
    "listing 100 queues": make_listings,
    "reading an idle queue": make_idle_reads,
}
"""Functions that return requests for random queues; ``size`` is the number of existing queues."""


@measure("deep", "Reading 100 messages at the head, in the middle and at the tail of a long queue")
def measure_long_queue(bench: Bench) -> Report:
    """Reads slices of the first, the middle and the last hundredth, in both orders."""
    count = bench.count(5_000_000, 20_000)
    directory = bench.new_directory("deep")
    store = service.prepare(directory)
    queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
    service.fill(store, queue, traffic.bodies(1000), count)
    bench.print_progress(f"{count:,} messages are there")
    message_ids = service.page_starts(store, queue, 100)
    store.close()
    with service.serve(directory) as server:
        return compare_places(bench, server, message_ids, count)


def compare_places(bench: Bench, server: Process, message_ids: list[str], count: int) -> Report:
    part = max(10, len(message_ids) // 100)
    middle = len(message_ids) // 2
    parts = {
        "head": message_ids[:part],
        "middle": message_ids[middle : middle + part],
        "tail": message_ids[-part:],
    }
    calls: dict[str, Callable[[], Sample]] = {}
    for name, starts in parts.items():
        for order in ("ascending", "descending"):
            bench.rng.shuffle(starts)
            paths = [f"{QUEUE}?limit=100&order={order}&since={start}" for start in starts]
            run = partial(traffic.run, server, traffic.gets(paths, 100), connections=1)
            calls[f"{name}, {order}"] = partial(run, seconds=bench.duration(1, 0.3), warm=0.2)
    samples = bench.interleave(calls, bench.count(5, 1))
    costs = {name: [sample.p50 for sample in runs] for name, runs in samples.items()}
    rows = [Row(name, values, "ms") for name, values in costs.items()]
    ratios = [max(values) / min(values) for values in zip(*costs.values(), strict=True)]
    verdict = Verdict("slowest position / fastest position", ratios, goal=MAX_FLAT_RATIO, better="lower")
    return Report("", "", rows, [verdict], [f"{count:,} messages in one partition; time of a request."])


@measure("console", "Pages of the console with a million queues and a million messages in one, beside the API")
def measure_console(bench: Bench) -> Report:
    """Uses one connection, so that a figure is a latency. The API returns the same contents as JSON."""
    queue_count, count = bench.count(1_000_000, 2_000), bench.count(1_000_000, 3_000)
    directory = bench.new_directory("console")
    store = service.prepare(directory)
    queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
    service.fill(store, queue, traffic.bodies(1000), count)
    message_ids = service.page_starts(store, queue, 100)
    token, _ = Sessions(store).begin(sha256(traffic.KEY.encode()).digest())
    store.close()
    service.fill_queues(directory, queue_count)
    bench.print_progress(f"{queue_count:,} queues and {count:,} messages are there")
    places = [
        {"start": f"q{bench.rng.randrange(queue_count - 1000):07d}", "at": bench.rng.choice(message_ids[10:])}
        for _ in range(2000)
    ]
    headers = {"Cookie": f"{cookies.SESSION_COOKIE}={token}"}
    calls: dict[str, Callable[[], Sample]] = {}
    with service.serve(directory, environment={"QUEUEY_CONSOLE": "on"}) as server:
        for name, (page, resource) in CONSOLE.items():
            pages = Job([traffic.request("GET", page.format(**place), headers=headers) for place in places], 200)
            resources = traffic.gets([resource.format(**place) for place in places])
            for side, job in ((f"{name}, console", pages), (f"{name}, API", resources)):
                calls[side] = partial(traffic.run, server, job, connections=1, seconds=bench.duration(2, 0.3), warm=0.2)
        samples = bench.interleave(calls, bench.count(5, 1))
    rows = [
        Row(name, [run.p50 for run in runs], "ms", {"p99 ms": statistics.median(run.p99 for run in runs)})
        for name, runs in samples.items()
    ]
    verdicts = [
        Verdict(
            f"{name}: p99",
            [run.p99 for run in samples[f"{name}, console"]],
            "ms",
            MAX_PAGE_MILLISECONDS,
            better="lower",
        )
        for name in CONSOLE
    ]
    return Report("", "", rows, verdicts, ["Time of a request over one connection, medians over rounds."])


_PAGES = f"/console/a/{service.APPLICATION}"
CONSOLE = {
    "100 queues": (_PAGES + "/_queues?start={start}", service.BASE + "?limit=100&details=1&offset={start}"),
    "their depths": (
        _PAGES + "/_queues?depth=on&start={start}",
        service.BASE + "?limit=100&include_count=1&offset={start}",
    ),
    "queue": (_PAGES + "/bench", QUEUE + "/info"),
    "its jobs": (_PAGES + "/bench/jobs", QUEUE + "/backlog"),
    "50 messages": (_PAGES + "/bench/messages?since={at}", QUEUE + "?limit=50&order=descending&since={at}"),
    "500 messages for a text": (
        _PAGES + "/bench/messages?text=nowhere&since={at}",
        QUEUE + "?limit=500&order=descending&since={at}",
    ),
    "message": (_PAGES + "/bench/messages/1:{at}", QUEUE + "/explain/1:{at}"),
    "failures": (_PAGES + "/_failures?start={start}", service.BASE + "?limit=1000&details=1&offset={start}"),
}
"""Pages, and the API requests with the same contents; with placeholders for the name of a queue or an id."""


@measure("expiry", "Writers and readers while many messages expire and are swept, against the same without expiry")
def measure_expiry(bench: Bench) -> Report:
    count = bench.count(1_000_000, 20_000)
    texts = traffic.bodies(1000)
    rounds = bench.count(3, 1)
    samples = bench.interleave(
        {
            "expiring": partial(run_under_load, bench, texts, count, expiring=True),
            "lasting": partial(run_under_load, bench, texts, count, expiring=False),
        },
        rounds,
    )
    rows, verdicts = [], []
    for role in ("writers", "readers"):
        for side, runs in samples.items():
            samples_of_role = [run[role] for run in runs]
            rows.append(Row(f"{role}, {side}: longest wait", [run.longest for run in samples_of_role], "ms"))
            rows.append(Row(f"{role}, {side}: p99", [run.p99 for run in samples_of_role], "ms"))
            rows.append(Row(f"{role}, {side}: rate", [run.rate for run in samples_of_role], "requests/s"))
        for figure in ("p99", "longest"):
            pairs = zip(samples["expiring"], samples["lasting"], strict=True)
            ratios = [getattr(run[role], figure) / getattr(other[role], figure) for run, other in pairs]
            verdicts.append(Verdict(f"{role}, {figure}: expiring / lasting", ratios, better="lower"))
    swept = [run["sweep"].answers for run in samples["expiring"]]
    rows.append(Row("swept during the run", swept, "messages"))
    note = (
        f"{count:,} messages; 8 connections write one message a request, 4 read 100, from the head, of the same queue."
    )
    return Report("expiry", "", rows, verdicts, [note])


def run_under_load(bench: Bench, texts: list[str], count: int, *, expiring: bool) -> dict[str, Sample]:
    """Runs writers and readers over the time in which ``count`` messages expire, or would.

    The side ``sweep`` has the rate of swept messages.

    Raises:
        Void: No message was swept by the end, so the run did not measure sweeping.
    """
    directory = bench.new_directory("expiry")
    store = service.prepare(directory)
    writes, reads = traffic.posts_of_one(QUEUE, texts[:64]), traffic.gets([f"{QUEUE}?limit=100"])
    ttl_seconds = int(bench.duration(12, 4))
    seconds = bench.duration(20, 4)
    began = time.monotonic()
    ttl = ttl_seconds if expiring else service.THREE_DAYS
    service.fill(store, bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), texts, count, ttl=ttl)
    store.close()
    with service.serve(directory) as server:
        time.sleep(max(0.0, began + ttl_seconds - 1 - time.monotonic()))
        samples = run_concurrently(
            writers=partial(traffic.run, server, writes, seconds=seconds, connections=8),
            readers=partial(traffic.run, server, reads, seconds=seconds, connections=4),
        )
        swept = count - service.count_expired(directory) if expiring else 0
    if expiring and not swept:
        raise Void("no message was swept by the end of the run")
    return {**samples, "sweep": Sample(rate=swept / seconds, answers=swept)}


def run_concurrently(**calls: Callable[[], Sample]) -> dict[str, Sample]:
    with ThreadPoolExecutor(len(calls)) as pool:
        running = {name: pool.submit(call) for name, call in calls.items()}
    return {name: future.result() for name, future in running.items()}
