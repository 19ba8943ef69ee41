"""The service of this tree beside that of another one, an earlier commit above all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench.harness import Bench, Skip, measure
from tests.bench.load import traffic
from tests.bench.load.traffic import Job, Sample
from tests.bench.results import Report, Verdict
from tests.bench.started import service
from tests.bench.started.processes import Process

BEFORE = "BENCH_BEFORE"
"""The environment variable that names the other tree: ``git worktree add ../before COMMIT`` makes one."""
NAMES = ("now", "before")
CONNECTIONS = (8, 64)
FILL = """
import contextlib, pathlib, sys
try:
    from tests.bench.load import traffic
    from tests.bench.started import service
except ImportError:  # commits that have no such folders
    from tests.bench import service, traffic
with contextlib.closing(service.prepare(pathlib.Path(sys.argv[1]), ["bench", "read"])) as store:
    service.fill(store, store.queue(service.APPLICATION, "read"), traffic.bodies(64), 1000)
"""
JOBS: dict[str, Job] = {
    "POST": traffic.posts_of_one(f"{service.BASE}/bench", traffic.bodies(64)),
    "GET of 1": traffic.gets([f"{service.BASE}/read?limit=1"]),
    "GET of 100": traffic.gets([f"{service.BASE}/read?limit=100"], 100),
}


def earlier() -> Path:
    """Returns the other tree.

    Raises:
        Skip: None is named.
    """
    path = os.environ.get(BEFORE)
    if not path:
        raise Skip(f"set {BEFORE} to the path of another tree of the project (git worktree add ../before COMMIT)")
    return Path(path).absolute()


@measure("before", "The service of this tree over that of another one, whose path is in BENCH_BEFORE")
def before(bench: Bench) -> Report:
    """Both serve at the same time, each its own data, and are asked in turns."""
    other = earlier()
    rows, verdicts = [], []
    with contextlib.ExitStack() as stack:
        servers = {
            "now": stack.enter_context(_serve(bench)),
            "before": stack.enter_context(_serve(bench, other)),
        }
        for what, job in JOBS.items():
            for connections in CONNECTIONS:
                calls: dict[str, Callable[[], Sample]] = {
                    name: partial(traffic.run, server, job, seconds=bench.pick(4, 1), connections=connections)
                    for name, server in servers.items()
                }
                samples = bench.interleave(calls, bench.size(9, 3))
                rows += [traffic.row(f"{what}, {connections} connections, {name}", samples[name]) for name in NAMES]
                rates = [now.rate / old.rate for now, old in zip(*(samples[name] for name in NAMES), strict=True)]
                verdicts.append(Verdict(f"{what}, {connections} connections: rate now / before", rates, goal=0.95))
    return Report("before", "", rows, verdicts)


def _serve(bench: Bench, tree: Path | None = None) -> contextlib.AbstractContextManager[Process]:
    directory = bench.fresh("queuey")
    # Each tree makes its own store: their tables may differ.
    root = Path(__file__).parents[3] if tree is None else tree
    subprocess.run(
        [sys.executable, "-c", FILL, str(directory)], cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=True
    )
    return service.serve(directory, environment={} if tree is None else {"PYTHONPATH": str(tree)})
