"""Compares the service of this checkout with that of another one, usually an earlier commit."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.harness import Bench, Skip, measure
from bench.load import traffic, wrk
from bench.load.signing import AccessKey
from bench.load.traffic import Job, Metered, Sample
from bench.measures import claims, sqs
from bench.measures.claims import CLIENTS, Supply
from bench.measures.keyed_posts import with_keys
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service
from bench.started.processes import ROOT, Process, describe_commit, inherited_environment
from queuey.client import Client

BEFORE_VARIABLE = "BENCH_BEFORE"
"""Environment variable with the path of the other checkout; ``git worktree add ../before COMMIT`` creates one."""
NAMES = ("now", "before")
MIN_RATE_RATIO, MAX_P99_RATIO = 0.97, 1.25
"""Min rate, as a share of the earlier rate, and max p99, as a multiple of the earlier p99."""
CONNECTIONS = (1, 64)
READ, JOBS = "read", "jobs"
BATCH = 100
PARTITIONS = 8
"""Partitions of the queues for claims on Cassandra; on SQLite they have one."""
CLAIMERS = 4
"""Clients that claim 100 messages per request."""
HORIZON_SECONDS = 5.5
"""Seconds until reads from Cassandra see a stored message, also in versions whose read delay is 5 s."""
KEY_FILE = "access-key.json"
"""File with the SQS access key that :data:`PREPARE_SCRIPT` writes into the directory of a store."""
PREPARE_SCRIPT = """
import json, os, pathlib, sys, types
from bench.started import nodes, on_cassandra, service
directory, keyspace, port, *hosts = sys.argv[1:]
if hosts:
    found = nodes.Nodes(types.SimpleNamespace(contact_points=hosts, port=int(port)))
    store = on_cassandra.prepare(found, keyspace, ())
else:
    from queuey.facades.settings import SqsFacade
    from queuey.facades.sqs import access_keys
    from queuey.settings import Settings
    from queuey.storage import bridge
    store = service.prepare(pathlib.Path(directory), ())
    secret = access_keys.deployment_secret(SqsFacade(), Settings(data=pathlib.Path(directory)), os.environ)
    name = access_keys.new_access_key()
    bridge.run(store.applications.add_key("queuey", access_keys.digest_of(name)))
    key = {"id": name, "secret": access_keys.secret_of(secret, name)}
    pathlib.Path(directory, "access-key.json").write_text(json.dumps(key))
store.close()
"""


def find_both_checkouts() -> dict[str, Path]:
    """Returns this checkout and the other one.

    Raises:
        Skip: The environment does not name another checkout.
    """
    path = os.environ.get(BEFORE_VARIABLE)
    if not path:
        raise Skip(
            f"set {BEFORE_VARIABLE} to the path of another checkout of the project (git worktree add ../before COMMIT)"
        )
    return dict(zip(NAMES, (ROOT, Path(path).absolute()), strict=True))


@measure("before", "The service of this tree over that of another one, whose path is in BENCH_BEFORE")
def compare_checkouts(bench: Bench) -> Report:
    """Both services run concurrently on their own data and are measured in turn, by wrk if it is installed."""
    with contextlib.ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, tree in find_both_checkouts().items():
            directory = prepare_store(bench, tree, name)
            (directory / "queuey.toml").write_text(sqs.SETTINGS, "utf-8")
            environment = {"PYTHONPATH": str(tree), "QUEUEY_CONFIG": str(directory / "queuey.toml")}
            server = stack.enter_context(service.serve(directory, environment=environment))
            sides[name] = Side(bench, server, key=json.loads((directory / KEY_FILE).read_text("utf-8")))
        return _compare(bench, sides)


@measure("cassandra-before", "The same on Cassandra: one node, a keyspace for each tree")
def compare_checkouts_on_cassandra(bench: Bench) -> Report:
    """Reads begin at random positions."""
    checkouts = find_both_checkouts()
    with contextlib.ExitStack() as stack:
        cassandra = stack.enter_context(nodes.cassandra(bench))
        sides: dict[str, Side] = {}
        for name, tree in checkouts.items():
            directory = prepare_store(bench, tree, name, cassandra)
            server = on_cassandra.serve(cassandra, directory, keyspace=name, environment={"PYTHONPATH": str(tree)})
            sides[name] = Side(bench, stack.enter_context(server), PARTITIONS, cassandra)
        return _compare(bench, sides)


def prepare_store(bench: Bench, tree: Path, name: str, cassandra: nodes.Nodes | None = None) -> Path:
    """Creates a store with the code of ``tree``, because tables may differ between checkouts.

    The store is in the returned directory, or in the keyspace ``name`` if ``cassandra`` is given.
    """
    directory = bench.new_directory(name)
    address = [] if cassandra is None else [str(cassandra.address.port), *cassandra.address.hosts]
    subprocess.run(
        [sys.executable, "-c", PREPARE_SCRIPT, str(directory), name, *(address or ["0"])],
        cwd=tree,
        env=inherited_environment() | {"PYTHONPATH": str(tree)},
        check=True,
    )
    return directory


class Side:
    """A running service and its work, all of it over HTTP, so that both sides get the same.

    The constructor creates the queues and fills the queues for reads.
    """

    def __init__(
        self,
        bench: Bench,
        server: Process,
        partitions: int = 1,
        backend: Metered | None = None,
        key: AccessKey | None = None,
    ) -> None:
        self._server = server
        self._sqs = None if key is None else sqs.Side(server, f"{sqs.PREFIX}/", key, int)
        self._backend = backend
        self._seconds = bench.duration(4, 0.3)
        self._singles, self._hundreds = bench.count(4_000, 300), bench.count(40_000, 2_000)
        self.rounds = bench.count(9, 1)
        with self._open_client() as client:
            client.create_queue("bench")
            client.create_queue(READ)
            client.create_queue(JOBS, partitions=partitions)
        if self._sqs is not None:
            sqs.create_queues(self._sqs)
        stored = self._fill(READ, bench.count(20_000, 2_000))
        self._places = stored[:-BATCH:BATCH]
        self._supply = Supply(partial(self._fill, JOBS))

    def make_runs(self) -> dict[str, Callable[[], Sample]]:
        """Returns the runs by name. SQS needs a key."""
        requests: dict[str, Job] = {
            "POST of 1": traffic.posts_of_one(f"{service.BASE}/bench", traffic.bodies(64)),
            "GET of 1": traffic.gets([f"{service.BASE}/{READ}?limit=1&since={place}" for place in self._places]),
            f"POST of {BATCH}": traffic.posts_of_many(f"{service.BASE}/bench", traffic.bodies(1000), BATCH),
            f"GET of {BATCH}": traffic.gets(
                [f"{service.BASE}/{READ}?limit={BATCH}&since={place}" for place in self._places], BATCH
            ),
        }
        calls: dict[str, Callable[[], Sample]] = {
            f"{what}, {count} connection(s)": partial(
                wrk.LIGHTEST_GENERATOR,
                self._server,
                job,
                seconds=self._seconds,
                connections=count,
                backend=self._backend,
            )
            for what, job in requests.items()
            for count in CONNECTIONS
        }
        keyed = partial(with_keys, requests["POST of 1"])
        calls["POST of 1 with a key, 64 connection(s)"] = lambda: self._send_numbered(keyed())
        if (side := self._sqs) is not None:
            calls["SQS send of 1, 64 connection(s)"] = lambda: sqs.send(side, self._seconds, 64, many=False)
        return calls | self._make_claim_runs()

    def _send_numbered(self, job: Job) -> Sample:
        """Sends numbered requests, which wrk cannot."""
        return traffic.run(self._server, job, seconds=self._seconds, backend=self._backend)

    def _make_claim_runs(self) -> dict[str, Callable[[], Sample]]:
        cycles = partial(claims.run, self._server, backend=self._backend)
        single = partial(cycles, count=self._singles, limit=1, connections=CLIENTS, queue=JOBS)
        many = partial(cycles, count=self._hundreds, limit=BATCH, connections=CLAIMERS)
        claim = self._supply.run
        calls: dict[str, Callable[[], Sample]] = {
            "claims of 1 and their acknowledgement": partial(claim, single, self._singles),
            "the same in one request": partial(claim, partial(single, joined=True), self._singles),
            f"claims of {BATCH} and their acknowledgement": partial(claim, partial(many, queue=JOBS), self._hundreds),
        }
        return calls

    def _open_client(self) -> Client:
        url = f"http://127.0.0.1:{self._server.port}"
        return Client(url, key=traffic.KEY, application=service.APPLICATION)

    def _fill(self, queue: str, count: int) -> list[str]:
        texts = traffic.bodies(1000)
        with self._open_client() as client:
            return [stored.id for stored in client.send_many(queue, [texts[n % len(texts)] for n in range(count)])]


def _compare(bench: Bench, sides: dict[str, Side]) -> Report:
    """Compares rate, p99 and CPU job by job, each after an uncounted round.

    Background work and other programs only add CPU, so the least CPU of all rounds is compared, too.
    """
    jobs = {name: side.make_runs() for name, side in sides.items()}
    time.sleep(HORIZON_SECONDS)
    rows: list[Row] = []
    notes = [f"{name}: commit {describe_commit(tree)}" for name, tree in find_both_checkouts().items()]
    verdicts: list[Verdict] = []
    for what in jobs["now"]:
        calls: dict[str, Callable[[], Sample]] = {"now": jobs["now"][what], "before": jobs["before"][what]}
        bench.print_progress(what)
        bench.interleave(calls, 1)
        samples = bench.interleave(calls, sides["now"].rounds)
        rows += [traffic.row(f"{what}, {name}", samples[name]) for name in NAMES]
        rates = pairwise_ratios(*(traffic.rates(samples[name]) for name in NAMES))
        verdicts.append(Verdict(f"{what}: rate now / before", rates, goal=MIN_RATE_RATIO))
        tails = pairwise_ratios(*([sample.p99 for sample in samples[name]] for name in NAMES))
        verdicts.append(Verdict(f"{what}: p99 now / before", tails, goal=MAX_P99_RATIO, better="lower"))
        spent = pairwise_ratios(*([sample.cpu for sample in samples[name]] for name in NAMES))
        verdicts.append(Verdict(f"{what}: CPU now / before", spent, better="lower"))
        least = [[min(sample.cpu for sample in samples[name] if sample.answers)] for name in NAMES]
        verdicts.append(Verdict(f"{what}: least CPU now / before", pairwise_ratios(*least), better="lower"))
    return Report("", "", rows, verdicts, notes)
