"""Measures the CPU of calls in EmoDB's protocol against the native calls that they are translated to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.cycles import Dialect
from bench.load.traffic import Job, Sample
from bench.measures import claims
from bench.results import Report, Verdict, pairwise_ratios
from bench.started import processes, service
from queuey.storage import bridge

QUEUE = claims.QUEUE
CONNECTIONS = 32
MAX_CPU_RATIO = 1.15
"""Max CPU of a call in the server, as a multiple of the native call's."""
EMODB_HEADERS = {"X-BV-API-Key": traffic.KEY, "Content-Type": "application/json"}


@measure("emodb", "Sends and polls by EmoDB's protocol, against the native calls")
def compare_emodb(bench: Bench) -> Report:
    """Both go to the same queue of the same service, on SQLite with an fsync before each answer."""
    count, ours = bench.count(4_000, 200), bench.new_directory("queuey")
    config = ours / "queuey.toml"
    config.write_text("[facades.emodb]\nbeside = true\n")
    texts = [f'"{text}"' for text in traffic.bodies(100)]
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(service.prepare(ours)))
        server = stack.enter_context(service.serve(ours, environment={"QUEUEY_CONFIG": str(config)}))
        calls: dict[str, Callable[[], Sample]] = {
            "send, native": partial(
                _send, bench, server, f"{service.BASE}/{QUEUE}", {"X-Encoding": "json"}, texts, 201
            ),
            "send, EmoDB": partial(_send, bench, server, f"/queue/1/{QUEUE}/send", EMODB_HEADERS, texts, 200),
        }
        samples = bench.interleave(calls, bench.count(7, 1))
        bridge.run(store.catalogue.purge_queue(bridge.run(store.catalogue.queue(service.APPLICATION, QUEUE))))
        cycles: dict[str, Callable[[], Sample]] = {
            name: partial(
                claims.fill_and_run, store, partial(claims.run_cycles, server, spoken, count, CONNECTIONS), count
            )
            for name, spoken in {
                "poll and acknowledge, native": claims.make_dialect(10, QUEUE),
                "poll and acknowledge, EmoDB": _make_dialect(10),
            }.items()
        }
        samples |= bench.interleave(cycles, bench.count(7, 1))
    verdicts = [
        Verdict(
            f"{action}: CPU of EmoDB's call / native",
            pairwise_ratios(*([run.cpu for run in samples[f"{action}, {side}"]] for side in ("EmoDB", "native"))),
            goal=MAX_CPU_RATIO,
            better="lower",
        )
        for action in ("send", "poll and acknowledge")
    ]
    rows = [traffic.row(name, runs) for name, runs in samples.items()]
    notes = [
        f"{CONNECTIONS} connections, {traffic.BODY_BYTES} B bodies, 1 worker, one partition; polls of 10 messages."
    ]
    return Report("", "", rows, verdicts, notes)


def _send(
    bench: Bench, server: processes.Process, path: str, headers: dict[str, str], texts: list[str], status: int
) -> Sample:
    job = Job([traffic.request("POST", path, text, headers) for text in texts], status)
    return traffic.run(server, job, seconds=bench.duration(2.5, 0.3), connections=CONNECTIONS)


def _make_dialect(limit: int) -> Dialect:
    path, length = f"/queue/1/{QUEUE}", "Content-Length: "
    settle = traffic.request("POST", f"{path}/ack", "", EMODB_HEADERS)
    return {
        "claim": traffic.request("GET", f"{path}/poll?limit={limit}&ttl=60", headers=EMODB_HEADERS),
        "receipt": '"id":"([^"]+)"',
        "settle": settle[: settle.index(length) + len(length)],
        "before": "[",
        # Omits the first of the two values.
        "each": '%.0s"%s"',
        "after": "]",
    }
