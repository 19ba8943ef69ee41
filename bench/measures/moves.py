"""Measures moving messages to another queue."""

from __future__ import annotations

import contextlib

from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.results import Report, Row, Verdict
from bench.started import service
from queuey.client import Client
from queuey.model.messages import QueueSpec
from queuey.storage import bridge


@measure("move", "Messages moved to another queue a second")
def measure_moves(bench: Bench) -> Report:
    """Moves all messages of a queue, one queue after another; raises Void unless all were moved."""
    count, ours, rates = bench.count(100_000, 5_000), bench.new_directory("queuey"), []
    texts = traffic.bodies(1000)
    with contextlib.closing(service.prepare(ours)) as store, service.serve(ours) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Client(url, key=traffic.KEY, application=service.APPLICATION) as client:
            for number in range(bench.count(5, 1)):
                names = [f"{side}-{number}" for side in ("from", "to")]
                source, _ = (
                    bridge.run(store.catalogue.create_queue(service.APPLICATION, name, QueueSpec()))[0]
                    for name in names
                )
                service.fill(store, source, texts, count)
                result = client.move(*names).wait()
                if result.moved != count or result.ended is None:
                    raise Void(f"the move ended as {result}")
                rates.append(count / (result.ended - result.began))
                bridge.run(
                    store.catalogue.purge_queue(
                        bridge.run(store.catalogue.queue(service.APPLICATION, names[1], fresh=True))
                    )
                )
    notes = [f"{count:,} messages, {traffic.BODY_BYTES} B bodies, one partition, from the request to the end."]
    rows = [Row("moved", rates, "messages/s")]
    return Report("move", "", rows, [Verdict("messages a second", rates, unit="/s", goal=5_000)], notes)
