"""Streams and kills of the service: all go on, none misses a message, none gets one twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from contextlib import ExitStack

from queuey.client import Client
from tests.acceptance.crashes.conftest import APP, KEY, PATIENT, Start, kill_often
from tests.javascript.test_node import CLIENT, HERE, NODE, needs_node
from tests.servers.processes import ending
from tests.servers.served import free_port

QUEUES, KILLS = 8, 4


@needs_node
def test_streams_go_on_after_kills(start: Start) -> None:
    """One for each queue, read by the client in Node, while messages come and the service dies again and again."""
    port = free_port()
    posted: dict[str, list[str]] = {f"q{number}": [] for number in range(QUEUES)}
    answered: list[str] = []
    with ExitStack() as stack:
        running = {port: stack.enter_context(start(port))}
        client = stack.enter_context(Client(f"http://127.0.0.1:{port}", key=KEY, application=APP, retry=PATIENT))
        for queue in posted:
            client.create_queue(queue)
        said = {"URL_": f"http://127.0.0.1:{port}", "KEY": KEY, "APPLICATION": APP, "CLIENT": CLIENT.as_uri()}
        reading = subprocess.Popen(
            [str(NODE), str(HERE / "read_streams.mjs")],
            env={**os.environ, **said, "QUEUES": json.dumps(list(posted))},
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

        kill_often(stack, start, running, [post], answered, kills=KILLS, rng=random.Random(1))
        for queue in posted:
            client.send(queue, "end")
        came = json.loads(reading.stdout.readline())
    assert [each["found"] for each in came] == [[*bodies, "end"] for bodies in posted.values()]
    assert max(each["opened"] for each in came) > 1
