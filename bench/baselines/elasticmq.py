"""ElasticMQ as a baseline: its jars are cached, and it is called as SQS."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

from bench.harness import Skip
from bench.load import traffic
from bench.load.traffic import Job
from bench.started.processes import Process, start
from deploy.local import jars, java
from deploy.local.errors import CannotFetch, NoJava
from tests.servers.served import free_port

VERSION = "1.7.1"
MAIN = "org.elasticmq.server.Main"
QUEUE = "/000000000000/bench"
BATCH = 10
"""Max messages per call of SQS."""

BUNDLE = jars.Bundle(f"elasticmq-{VERSION}", (f"org.elasticmq:elasticmq-server_3:{VERSION}",))

SETTINGS = """
include classpath("application.conf")
node-address {{ protocol = http, host = 127.0.0.1, port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
queues {{ bench {{ }} }}
"""


def serve(directory: Path) -> contextlib.AbstractContextManager[Process]:
    """Runs ElasticMQ with one queue, in memory.

    Raises:
        Skip: This machine has no Java, or ElasticMQ could not be fetched.
    """
    try:
        command, lib = java.find_java(), jars.fetch_jars(BUNDLE)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"ElasticMQ {VERSION}: {error}") from error
    port = free_port()
    settings = directory / "elasticmq.conf"
    settings.write_text(SETTINGS.format(port=port), "utf-8")
    options = ["-Xmx2g", f"-Dconfig.file={settings}", "-cp", f"{lib}/*"]
    return start("elasticmq", [str(command), *options, MAIN], port, directory)


def query_request(action: str, fields: dict[str, str]) -> str:
    body = urlencode({"Action": action, **fields})
    return traffic.request("POST", QUEUE, body, {"Content-Type": "application/x-www-form-urlencoded"})


def json_request(action: str, fields: dict[str, object]) -> str:
    body = json.dumps({"QueueUrl": f"http://127.0.0.1{QUEUE}", **fields})
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    return traffic.request("POST", "/", body, headers)


def json_batch(group: Sequence[str]) -> str:
    entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(group, 1)]
    return json_request("SendMessageBatch", {"Entries": entries})


def fill(server: Process, messages: Sequence[str]) -> None:
    """Empties the queue and sends these messages; a few may be sent twice."""
    purge(server)
    batches = [json_batch(messages[at : at + BATCH]) for at in range(0, len(messages), BATCH)]
    job = Job(batches, 200, BATCH)
    traffic.run(server, job, seconds=60, connections=4, warm=0, count=len(job.requests))


def purge(server: Process) -> None:
    job = Job([query_request("PurgeQueue", {})], 200)
    traffic.run(server, job, seconds=10, connections=1, warm=0, count=1)
