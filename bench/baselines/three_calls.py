"""A worker loop that makes the original's three calls a message, one after another over one connection.

GET of the partition's status message, GET of up to two messages from the processed one on (which is the first of
them), PUT of the status with the new one. The standard library's HTTP client, which costs less than the one that the
original used; nothing is done with the message.

``python -m bench.baselines.three_calls PORT QUEUE SECONDS WARM`` prints messages a second and microseconds of its
CPU a message, after ``WARM`` seconds.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import uuid
from typing import Any

from bench.load.traffic import KEY

BASE = "/v1/queuey"
STATUS = "qdo_status"
THIRTY_DAYS = "2592000"


class Loop:
    """The loop over one partition.

    Args:
        port: Of the service.
        queue: Its name.
    """

    def __init__(self, port: int, queue: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._queue = queue
        self._status = f"{BASE}/{STATUS}/1%3A{uuid.uuid1().hex}"
        self.processed = ""
        self._put()

    def step(self) -> bool:
        """Handles the next message; returns whether there was one."""
        status = json.loads(self._call("GET", self._status)["messages"][0]["body"])
        since = f"&since={status['processed']}" if status["processed"] else ""
        path = f"{BASE}/{self._queue}?limit=2&order=ascending&partitions=1{since}"
        found = [message["message_id"] for message in self._call("GET", path)["messages"]]
        new = [identifier for identifier in found if identifier != status["processed"]]
        if not new:
            return False
        self.processed = new[0]
        self._put()
        return True

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _put(self) -> None:
        value = {"partition": f"{self._queue}-1", "processed": self.processed, "last_worker": "bench"}
        self._call("PUT", self._status, json.dumps(value))

    def _call(self, method: str, path: str, body: str | None = None) -> Any:  # noqa: ANN401 - any JSON
        headers = {"Authorization": f"Application {KEY}", "X-TTL": THIRTY_DAYS}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK:
            sys.exit(f"{method} {path}: {answer.status} {content.decode()}")
        return json.loads(content)


def handle_for(loop: Loop, seconds: float) -> tuple[int, float, float]:
    """Handles messages for a while; returns how many, in how many seconds, with how many seconds of CPU."""
    begun, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begun < seconds:
        if not loop.step():
            sys.exit("no messages are left")
        count += 1
    return count, time.perf_counter() - begun, time.process_time() - cpu


if __name__ == "__main__":
    number, name, measured, warm = sys.argv[1:]
    loop = Loop(int(number), name)
    handle_for(loop, float(warm))
    handled, elapsed, spent = handle_for(loop, float(measured))
    print(json.dumps([handled / elapsed, spent * 1e6 / handled]))
