"""The requests of the original Qdo worker, exactly as it sends them."""

from __future__ import annotations

import json
import uuid
from urllib.parse import quote

import pytest

from queuey.web.parts import App
from tests.web.original.test_original_client import OriginalClient

MONTH = {"X-TTL": "2592000"}
STATUS_PARTITIONS = 7


class OriginalWorker:
    """Does what an original worker does with Queuey, one message at a time."""

    def __init__(self, client: OriginalClient, fail_on: str = "") -> None:
        self.client = client
        self.fail_on = fail_on
        self.done: list[str] = []
        self.status: dict[str, tuple[int, str]] = {}

    def start(self) -> list[str]:
        """Creates its own queues, and reads the status messages.

        Returns the names of all partitions of the other queues.
        """
        assert self.client.caller("HEAD", "/__heartbeat__").status == 200
        listed = self.client.get(params={"details": True}).json["queues"]
        names = [q["queue_name"] for q in listed]
        for own in ("qdo_error", "qdo_status"):
            if own not in names:
                self.client.create_queue(queue_name=own, partitions=STATUS_PARTITIONS)
        for message in self.client.messages("qdo_status", limit=1000, order="descending"):
            entry = json.loads(message["body"])
            self.status.setdefault(entry["partition"], (message["partition"], message["message_id"]))
        return [
            f"{q['queue_name']}-{number}"
            for q in listed
            if not q["queue_name"].startswith(("qdo_error", "qdo_status"))
            for number in range(1, q["partitions"] + 1)
        ]

    def read_processed(self, partition: str) -> str | None:
        if partition not in self.status:
            return None
        place, name = self.status[partition]
        reply = self.client.get(f"qdo_status/{place}{quote(':')}{name}")
        [message] = reply.messages
        assert isinstance(message["body"], str)
        position: str | None = json.loads(message["body"])["processed"] or None
        return position

    def step(self, partition: str) -> bool:
        """Handles the next message of a partition and records it; returns False if there was no message."""
        queue, _, number = partition.partition("-")
        messages = self.client.messages(queue, partition=int(number), since=self.read_processed(partition), limit=2)
        if not messages:
            return False
        message = messages[0]
        if message["body"] == self.fail_on:
            message["queue"] = partition
            assert self.client.post("qdo_error", data=json.dumps(message), headers=MONTH).status == 201
        else:
            self.done.append(message["body"])
        self.record(partition, int(number), message["message_id"])
        return True

    def record(self, partition: str, number: int, processed: str) -> None:
        place, name = self.status.setdefault(partition, ((number - 1) % STATUS_PARTITIONS + 1, uuid.uuid1().hex))
        body = json.dumps({"partition": partition, "processed": processed, "last_worker": "host-1"})
        reply = self.client.put(f"qdo_status/{place}{quote(':')}{name}", data=body, headers=MONTH)
        assert reply.json == {"status": "ok"}


@pytest.fixture
def client(app: App) -> OriginalClient:
    """The original client, with a queue of nine messages over three partitions."""
    original = OriginalClient(app)
    original.create_queue(partitions=3, queue_name="jobs")
    for number in range(9):
        original.post("jobs", data=f"job {number}", headers={"X-Partition": str(number % 3 + 1)})
    return original


def test_a_worker_does_every_job_once(client: OriginalClient) -> None:
    """Going over its partitions, a worker finds each message once, in the order of its partition."""
    worker = OriginalWorker(client)
    partitions = worker.start()
    assert partitions == ["jobs-1", "jobs-2", "jobs-3"]
    while sum(worker.step(partition) for partition in partitions):
        pass
    assert sorted(worker.done) == [f"job {number}" for number in range(9)]
    for number in range(3):
        assert [job for job in worker.done if int(job[-1]) % 3 == number] == [
            f"job {index}" for index in range(number, 9, 3)
        ]


def test_a_worker_goes_on_where_another_stopped(client: OriginalClient) -> None:
    """The next worker finds what a worker recorded; the worker's own queues are not processed as work."""
    first = OriginalWorker(client)
    first.start()
    assert first.step("jobs-1")
    assert first.step("jobs-1")
    second = OriginalWorker(client)
    assert second.start() == ["jobs-1", "jobs-2", "jobs-3"]
    assert second.step("jobs-1")
    assert not second.step("jobs-1")
    assert second.done == ["job 6"]


def test_failed_jobs_are_kept(client: OriginalClient) -> None:
    """A failed message goes to the error queue as JSON text with where it came from, and work goes on."""
    worker = OriginalWorker(client, fail_on="job 3")
    worker.start()
    while worker.step("jobs-1"):
        pass
    assert worker.done == ["job 0", "job 6"]
    [failed] = client.messages("qdo_error", partition=",".join(map(str, range(1, STATUS_PARTITIONS + 1))))
    content = json.loads(failed["body"])
    assert (content["body"], content["queue"], content["partition"]) == ("job 3", "jobs-1", 1)
