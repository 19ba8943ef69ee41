"""Facades while the service is killed: fetched messages stay with their reader, and stored ones are kept."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.facades.sqs import access_keys
from queuey.storage import Store, bridge, cassandra, sqlite
from tests.acceptance.facades.calls import Facade, find_adjacent_free_ports, write_settings_file
from tests.acceptance.facades.conftest import LONG_REDELIVERY
from tests.acceptance.facades.test_emodb import Emodb, ids_of
from tests.acceptance.facades.test_mq import MAX_MESSAGE_BYTES, fetch_until, id_of, post
from tests.acceptance.facades.test_rqms import add, fetch, fetch_some, finish
from tests.acceptance.sqs.test_boto3 import client_of
from tests.servers import keyspaces
from tests.servers.served import Served

KEY, ACCESS_KEY, SECRET = "k" * 64, access_keys.new_access_key(), secrets.token_hex(32)
LETTERS = "/queue/1/letters"


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Served]:
    """Starts services with all facades on one port and one store, with a key and an access key."""
    (tmp_path / "sqs.secret").write_text(SECRET)
    sqs = f'[facades.sqs]\nprefix = "/sqs"\nsecret = "file:{tmp_path}/sqs.secret"\n'
    options = write_settings_file(tmp_path, LONG_REDELIVERY.replace("3600", "3600\nunsynced = true") + sqs)
    store: Store
    if request.param == "cassandra":
        url = keyspaces.make(request.getfixturevalue("cassandra"))
        options += ["--store", url]
        store = cassandra.open_store(url)
    else:
        store = sqlite.open_store(tmp_path / "data")
    bridge.run(store.applications.create_application("queuey"))
    for digest in (digest_of(KEY), access_keys.digest_of(ACCESS_KEY)):
        bridge.run(store.applications.add_key("queuey", digest))
    store.close()
    port = find_adjacent_free_ports()
    return lambda: Served(tmp_path, options, port=port)


def test_without_keys(start: Callable[[], Served]) -> None:
    """After kill -9 locks and tickets are valid; messages are there once, and of a name the newest."""
    bodies = [b"", bytes(range(256)), b"x" * MAX_MESSAGE_BYTES]
    with start() as served:
        mq, rqms = Facade(served.port, "/mq"), Facade(served.port, "/rqms")
        names = [post(mq, "jobs", body) for body in bodies]
        first = fetch_until(mq, "jobs", 200)
        assert (first.body, id_of(first)) == (bodies[0], names[0])
        assert [add(rqms, "items", name).status for name in "abc"] == [201] * 3
        [locked] = fetch_some(rqms, "items")
        assert rqms.call("PUT", "/items/b", b"2").status == 201
    with start():
        fetched = [fetch_until(mq, "jobs", 200) for _ in bodies[1:]]
        assert [(reply.body, id_of(reply)) for reply in fetched] == list(zip(bodies[1:], names[1:], strict=True))
        assert mq.call("GET", "/jobs/messages").status == 204
        assert [mq.call("DELETE", f"/jobs/messages/{name}").status for name in names] == [202] * 3
        assert add(rqms, "items", "c").status == 201
        items = [item for _ in range(2) for item in fetch_some(rqms, "items")]
        assert {(json.loads(item["ticket"])[0], item["value"]) for item in items} == {("b", 2), ("c", 1)}
        assert fetch(rqms, "items") == []
        assert [finish(rqms, "items", item).status for item in (locked, *items)] == [200] * 3
        assert finish(rqms, "items", locked).status == 409


def test_with_keys(start: Callable[[], Served]) -> None:
    """After kill -9 claims are held, a group of a FIFO queue waits for its first message, and a send is known."""
    with start() as served:
        emodb = Emodb(served, KEY)
        secret = access_keys.secret_of(SECRET.encode(), ACCESS_KEY)
        sqs = client_of(f"http://localhost:{served.port}/sqs", ACCESS_KEY, secret)
        emodb.call_successfully("POST", f"{LETTERS}/sendbatch", [1, 2, 3])
        [claimed] = emodb.get(f"{LETTERS}/poll?ttl=3600&limit=1")
        fifo = sqs.create_queue(QueueName="jobs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        message = {"QueueUrl": fifo, "MessageGroupId": "g"}
        sent = [sqs.send_message(**message, MessageBody=body, MessageDeduplicationId=body) for body in "ab"]
        [held] = sqs.receive_message(QueueUrl=fifo, VisibilityTimeout=3600)["Messages"]
    with start():
        assert (emodb.get(f"{LETTERS}/claimcount"), emodb.get(f"{LETTERS}/size")) == (1, 3)
        unclaimed = ids_of(emodb.get(f"{LETTERS}/poll?ttl=3600"))
        assert (len(unclaimed), claimed["id"] in unclaimed) == (2, False)
        emodb.call_successfully("POST", f"{LETTERS}/ack", [claimed["id"], *unclaimed])
        assert emodb.get(f"{LETTERS}/size") == 0
        again = sqs.send_message(**message, MessageBody="b", MessageDeduplicationId="b")
        assert again["MessageId"] == sent[1]["MessageId"]
        assert "Messages" not in sqs.receive_message(QueueUrl=fifo)
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=held["ReceiptHandle"])
        [following] = sqs.receive_message(QueueUrl=fifo, WaitTimeSeconds=10)["Messages"]
        assert following["Body"] == "b"
        sqs.close()
