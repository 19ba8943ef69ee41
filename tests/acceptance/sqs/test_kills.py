"""The service is killed while clients send, receive and delete: order is kept, nothing is lost or stored twice."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.acceptance.sqs.conftest import command, new_key, store_options
from tests.acceptance.sqs.test_boto3 import WAIT, client_of
from tests.servers.served import Served, free_port

GROUPS, OF_GROUP = 4, 25
PAUSE = 0.15
"""Seconds between two messages of a group, so that each run of the service receives some."""
FAILURES = (BotoCoreError, ClientError)


class Delivery(NamedTuple):
    """A message that was received.

    Attributes:
        asked: Time at which the request began.
        call: Number of the receive.
        identity: Its MessageId.
    """

    asked: float
    call: object
    identity: str
    body: str


class Clients:
    """Senders to a queue and receivers from it, while the service is killed and restarted.

    Args:
        make: Makes a client that does not retry.
        url: URL of the queue.
        fifo: The queue is a FIFO queue.
    """

    def __init__(self, make: Callable[[], Any], url: str, *, fifo: bool) -> None:
        self._make = make
        self._url = url
        self._fifo = fifo
        self._end = time.monotonic() + 3 * WAIT
        self._lock = threading.Lock()
        self.sent: dict[str, set[str]] = defaultdict(set)
        self.deliveries: list[Delivery] = []
        self.deleted: dict[str, float] = {}
        self.doubted: set[str] = set()
        """Messages with an unconfirmed delete. It may have taken effect: then they do not come again."""
        self.failures = 0

    @property
    def is_done(self) -> bool:
        with self._lock:
            bodies = {each.body for each in self.deliveries}
            settled = self.deleted.keys() | self.doubted
            deleted = {each.body for each in self.deliveries if each.identity in settled}
            return len(self.sent) == GROUPS * OF_GROUP and bodies == deleted == self.sent.keys()

    def send(self, group: int) -> None:
        """Sends all messages of a group in order, each again until it is answered, and records its ids."""
        client = self._make()
        for number in range(OF_GROUP):
            body = f"{group}-{number}"
            arguments = {"QueueUrl": self._url, "MessageBody": body}
            if self._fifo:
                arguments |= {"MessageGroupId": str(group), "MessageDeduplicationId": body}
            while (answer := self._try_call(client.send_message, **arguments)) is None:
                assert time.monotonic() < self._end
            with self._lock:
                self.sent[body].add(answer["MessageId"])
            time.sleep(PAUSE)

    def receive(self) -> None:
        """Receives and deletes until all is done; a message whose deletion has no answer becomes doubted."""
        client = self._make()
        while not self.is_done:
            assert time.monotonic() < self._end
            began = time.monotonic()
            arguments = {"QueueUrl": self._url, "MaxNumberOfMessages": 3, "WaitTimeSeconds": 1, "VisibilityTimeout": 3}
            answer = self._try_call(client.receive_message, **arguments) or {}
            call = object()
            messages = answer.get("Messages", [])
            with self._lock:
                self.deliveries += [Delivery(began, call, one["MessageId"], one["Body"]) for one in messages]
            for one in messages:
                arguments = {"QueueUrl": self._url, "ReceiptHandle": one["ReceiptHandle"]}
                if self._try_call(client.delete_message, **arguments) is None:
                    with self._lock:
                        self.doubted.add(one["MessageId"])
                    break
                with self._lock:
                    self.deleted.setdefault(one["MessageId"], time.monotonic())

    def _try_call(self, call: Callable[..., Any], **given: object) -> dict[str, Any] | None:
        """Returns the answer to a call, or None if it failed and its outcome is unknown."""
        try:
            answer: dict[str, Any] = call(**given)
        except FAILURES:
            self.failures += 1
            time.sleep(0.05)
            return None
        return answer

    def check(self) -> None:
        assert {each.body for each in self.deliveries} == self.sent.keys()
        late = [each for each in self.deliveries if each.asked > self.deleted.get(each.identity, self._end)]
        assert not late, "deleted messages came again"
        if not self._fifo:
            return
        names = defaultdict(set)
        for each in self.deliveries:
            names[each.body].add(each.identity)
        assert {body: found for body, found in names.items() if len(found) > 1} == {}, "stored twice"
        assert all(found == names[body] for body, found in self.sent.items()), "another id was told"
        for group in range(GROUPS):
            firsts = dict.fromkeys(each.body for each in self.deliveries if each.body.startswith(f"{group}-"))
            assert list(firsts) == [f"{group}-{number}" for number in range(OF_GROUP)], "out of order"


@pytest.mark.parametrize(
    "fifo", [pytest.param(True, id="fifo"), pytest.param(False, id="standard", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("cassandra", marks=pytest.mark.slow)])
def test_killed(kind: str, fifo: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:  # noqa: FBT001
    """Killed and restarted, the service keeps its promises to clients of SQS."""
    store = store_options(kind, tmp_path, request)
    if kind == "cassandra":
        command("app", "create", "queuey", *store)
    port = free_port()
    options = ["--facade", "sqs", *store]
    key: tuple[str, str] = ("", "")

    def make() -> Any:  # noqa: ANN401 - boto3's
        retries = {"total_max_attempts": 1, "mode": "standard"}
        return client_of(f"http://localhost:{port}", *key, retries=retries, connect_timeout=5, read_timeout=20)

    with Served(tmp_path, options, port=port):
        key = new_key(store)
        attributes = {"FifoQueue": "true"} if fifo else {}
        url = make().create_queue(QueueName="jobs.fifo" if fifo else "jobs", Attributes=attributes)["QueueUrl"]
        clients = Clients(make, url, fifo=fifo)
        threads = [threading.Thread(target=clients.send, args=(group,)) for group in range(GROUPS)]
        threads += [threading.Thread(target=clients.receive) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
    for life in range(3):
        with Served(tmp_path, options, port=port):
            if life < 2:
                time.sleep(1.5)
                continue
            for thread in threads:
                thread.join(3 * WAIT)
    assert clients.is_done
    assert clients.failures
    clients.check()
