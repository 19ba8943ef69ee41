"""Streams and kills of the service: all resume, none misses a message, none gets one twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from contextlib import ExitStack
from itertools import groupby

import pytest

from tests.acceptance.crashes.conftest import APP, KEY, Start, serving
from tests.javascript.test_node import CLIENT, HERE, NODE, needs_node
from tests.servers.processes import ending

QUEUES, KILLS = 8, 4
END_SECONDS = 300.0
"""Seconds from the last message to the end of the reader, which then prints what it has. Kills may take longer."""


@needs_node
def test_streams_go_on_after_kills(start: Start, request: pytest.FixtureRequest) -> None:
    """One for each queue, read by the client in Node, while messages come and the service dies again and again."""
    posted: dict[str, list[str]] = {f"q{number}": [] for number in range(QUEUES)}
    answered: list[str] = []
    with serving(start, 1) as services, ExitStack() as stack:
        client, (url,) = services.client, services.urls
        for queue in posted:
            client.create_queue(queue)
        variables = {"URL_": url, "KEY": KEY, "APPLICATION": APP, "CLIENT": CLIENT.as_uri()}
        reading = subprocess.Popen(
            [str(NODE), str(HERE / "read_streams.mjs")],
            env={**os.environ, **variables, "QUEUES": json.dumps(list(posted))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stack.enter_context(ending(reading))
        assert reading.stdout is not None
        assert reading.stdin is not None
        assert reading.stdout.readline() == "reading\n"

        def post(ended: threading.Event) -> None:
            while not ended.is_set():
                for queue, bodies in posted.items():
                    bodies.append(f"{queue} {len(bodies)}")
                    client.send(queue, bodies[-1])
                    answered.append(bodies[-1])

        services.kill_often([post], answered, kills=KILLS, rng=random.Random(1))
        for queue in posted:
            client.send(queue, "end")
        too_long = threading.Timer(END_SECONDS, reading.terminate)
        stack.callback(too_long.cancel)
        too_long.start()
        came = json.loads(reading.stdout.readline())
    states = {each["queue"]: (each["found"][-1:], each["states"][-3:]) for each in came}
    read = [each["found"] for each in came]
    if "cassandra" in request.node.name:
        # A killed post is repeated, and what its first attempt had written may have been read before.
        read = [[body for body, _ in groupby(bodies)] for bodies in read]
    assert read == [[*bodies, "end"] for bodies in posted.values()], states
    assert max(sum(state.endswith("open") for state in each["states"]) for each in came) > 1
