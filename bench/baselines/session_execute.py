"""A plain Pyramid view that stores a message with ``session.execute``, as a good tutorial would do it.

It uses a prepared statement, Pyramid's own JSON, and ids of ``uuid.uuid1``. It omits other work of the service, which
is in its favour: keys, limits, a catalogue, and an order of ids that readers can rely on.

Environment: ``BENCH_CASSANDRA``, see :class:`~bench.baselines.cassandra_table.Address`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from pyramid.config import Configurator
from pyramid.request import Request

from bench.baselines import cassandra_table
from queuey import ids


def post(request: Request) -> dict[str, Any]:
    (message,) = request.json_body["messages"]
    key = uuid.uuid1()
    values = (cassandra_table.QUEUE, cassandra_table.PARTITION, key, message["body"])
    request.registry.cassandra.execute(request.registry.insert, values)
    request.response.status_int = 201
    stored = {"key": key.hex, "timestamp": ids.timestamp_text(key.time), "partition": cassandra_table.PARTITION}
    return {"status": "ok", "messages": [stored]}


def make_app() -> Callable[..., Iterable[bytes]]:
    session = cassandra_table.connect(cassandra_table.Address.from_environment())
    config = Configurator()
    config.registry.cassandra = session
    config.registry.insert = session.prepare(cassandra_table.INSERT)
    config.add_route("queue", "/v1/{application}/{queue}")
    config.add_view(post, route_name="queue", request_method="POST", renderer="json")
    app_callable: Callable[..., Iterable[bytes]] = config.make_wsgi_app()
    return app_callable


app = make_app() if "BENCH_CASSANDRA" in os.environ else None
