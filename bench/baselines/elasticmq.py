"""ElasticMQ as a baseline: fetched once into a cache directory, started in memory, spoken to as SQS."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import platformdirs

from bench.harness import Skip
from bench.load import traffic
from bench.load.cycles import Dialect
from bench.load.traffic import Job
from bench.started.processes import Process, start
from tests.servers.served import free_port

VERSION = "1.7.1"
MAIN = "org.elasticmq.server.Main"
QUEUE = "/000000000000/bench"
BATCH = 10
"""The most messages that SQS takes in one call."""

PROJECT = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.elasticmq</groupId><artifactId>elasticmq-server_3</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""

SETTINGS = """
include classpath("application.conf")
node-address {{ protocol = http, host = 127.0.0.1, port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
queues {{ bench {{ }} }}
"""


def jars() -> Path:
    """Returns the directory with ElasticMQ and what it needs, fetched by Maven when it is not there yet.

    Raises:
        Skip: No Java or no Maven here, or nothing could be fetched.
    """
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise Skip(f"needs {tool}, which is not installed")
    cache = platformdirs.user_cache_path("queuey-bench") / f"elasticmq-{VERSION}"
    if (cache / "complete").exists():
        return cache / "lib"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "pom.xml").write_text(PROJECT, "utf-8")
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
    done = subprocess.run(command, cwd=cache, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise Skip(f"ElasticMQ {VERSION} could not be fetched: {(done.stdout + done.stderr)[-300:]}")
    (cache / "complete").touch()
    return cache / "lib"


def serve(directory: Path) -> contextlib.AbstractContextManager[Process]:
    """Runs ElasticMQ with one queue in memory.

    Raises:
        Skip: See :func:`jars`.
    """
    port = free_port()
    settings = directory / "elasticmq.conf"
    settings.write_text(SETTINGS.format(port=port), "utf-8")
    command = ["java", "-Xmx2g", f"-Dconfig.file={settings}", "-cp", f"{jars()}/*", MAIN]
    return start("elasticmq", command, port, directory)


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
