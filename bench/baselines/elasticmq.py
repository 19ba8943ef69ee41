"""ElasticMQ as a baseline: fetched once into a cache directory, started in memory, spoken to as SQS."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

from bench.harness import Skip
from bench.load import traffic
from bench.load.cycles import Dialect
from bench.load.traffic import Job
from bench.started.processes import Process, start
from deploy.local import jars, java
from deploy.local.errors import CannotFetch, NoJava
from tests.servers.served import free_port

VERSION = "1.7.1"
MAIN = "org.elasticmq.server.Main"
QUEUE = "/000000000000/bench"
BATCH = 10
"""The most messages that SQS takes in one call."""

BUNDLE = jars.Bundle(f"elasticmq-{VERSION}", (f"org.elasticmq:elasticmq-server_3:{VERSION}",))

SETTINGS = """
include classpath("application.conf")
node-address {{ protocol = http, host = 127.0.0.1, port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
queues {{ bench {{ }} }}
"""
ON_DISK = """
messages-storage {{ enabled = true, uri = "jdbc:h2:{directory}/messages" }}
"""
"""Settings by which it keeps messages in H2, a database in its own process."""


def serve(directory: Path, *, on_disk: bool = False) -> contextlib.AbstractContextManager[Process]:
    """Runs ElasticMQ with one queue, in memory as its default is, or in H2.

    Raises:
        Skip: No Java here, or it could not be fetched.
    """
    try:
        command, lib = java.find(), jars.fetch(BUNDLE)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"ElasticMQ {VERSION}: {error}") from error
    port = free_port()
    settings = directory / "elasticmq.conf"
    text = SETTINGS + ON_DISK if on_disk else SETTINGS
    settings.write_text(text.format(port=port, directory=directory), "utf-8")
    options = ["-Xmx2g", f"-Dconfig.file={settings}", "-cp", f"{lib}/*"]
    return start("elasticmq", [str(command), *options, MAIN], port, directory)


def query_request(action: str, fields: dict[str, str]) -> str:
    """Returns a call in the query protocol of SQS."""
    body = urlencode({"Action": action, **fields})
    return traffic.request("POST", QUEUE, body, {"Content-Type": "application/x-www-form-urlencoded"})


def json_request(action: str, fields: dict[str, object]) -> str:
    """Returns a call in the JSON protocol of SQS."""
    body = json.dumps({"QueueUrl": f"http://127.0.0.1{QUEUE}", **fields})
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    return traffic.request("POST", "/", body, headers)


def sends(messages: Sequence[str], protocol: str) -> Job:
    """Returns a SendMessage for each message."""
    if protocol == "query":
        return Job([query_request("SendMessage", {"MessageBody": body}) for body in messages], 200)
    return Job([json_request("SendMessage", {"MessageBody": body}) for body in messages], 200)


def batch_sends(messages: Sequence[str], protocol: str) -> Job:
    """Returns SendMessageBatch calls, each as full as SQS allows."""
    make = query_batch if protocol == "query" else json_batch
    return Job([make(messages[at : at + BATCH]) for at in range(0, len(messages), BATCH)], 200, BATCH)


def query_batch(group: Sequence[str]) -> str:
    """Returns one SendMessageBatch in the query protocol."""
    fields = {}
    for place, body in enumerate(group, 1):
        fields[f"SendMessageBatchRequestEntry.{place}.Id"] = str(place)
        fields[f"SendMessageBatchRequestEntry.{place}.MessageBody"] = body
    return query_request("SendMessageBatch", fields)


def json_batch(group: Sequence[str]) -> str:
    """Returns one SendMessageBatch in the JSON protocol."""
    entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(group, 1)]
    return json_request("SendMessageBatch", {"Entries": entries})


def receives() -> Dialect:
    """Returns how batches are received and deleted, in the JSON protocol: the faster one."""
    length = "Content-Length: "
    settle = json_request("DeleteMessageBatch", {})
    return {
        "claim": json_request("ReceiveMessage", {"MaxNumberOfMessages": BATCH}),
        "receipt": '"ReceiptHandle": ?"([^"]+)"',
        "settle": settle[: settle.index(length) + len(length)],
        "before": f'{{"QueueUrl":"http://127.0.0.1{QUEUE}","Entries":[',
        "each": '{"Id":"%d","ReceiptHandle":"%s"}',
        "after": "]}",
    }


def fill(server: Process, messages: Sequence[str]) -> None:
    """Puts messages into the emptied queue, and perhaps some more."""
    purge(server)
    job = batch_sends(messages, "json")
    traffic.run(server, job, seconds=60, connections=4, warm=0, count=len(job.requests))


def purge(server: Process) -> None:
    """Empties the queue, so that what one run left does not weigh on the next."""
    job = Job([query_request("PurgeQueue", {})], 200)
    traffic.run(server, job, seconds=10, connections=1, warm=0, count=1)
