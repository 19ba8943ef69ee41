"""NATS, RabbitMQ and Kafka brokers: one local node that syncs to disk before it acknowledges."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Skip, Void
from bench.started import other_python
from bench.started.processes import Process, launched
from deploy.local import jars, java
from deploy.local.errors import CannotFetch, NoJava
from tests.servers.served import free_port

KAFKA_VERSION = "4.1.1"
KAFKA = jars.Bundle(
    f"kafka-{KAFKA_VERSION}",
    (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-group-coordinator:{KAFKA_VERSION}"),
)
START_SECONDS = 60.0

NATS_SETTINGS = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}", sync_interval: always }}
"""
RABBIT_SETTINGS = """
listeners.tcp.1 = 127.0.0.1:{port}
distribution.listener.port_range.min = {distribution}
distribution.listener.port_range.max = {distribution}
"""
KAFKA_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@contextlib.contextmanager
def nats(directory: Path) -> Iterator[tuple[str, Process]]:
    """Runs NATS with JetStream, which syncs before each acknowledgement; yields its address and process.

    Raises:
        Skip: NATS could not be installed.
    """
    program = other_python.find_interpreter().with_name("nats-server")
    port = free_port()
    settings = directory / "nats.conf"
    settings.write_text(NATS_SETTINGS.format(port=port, directory=directory), "utf-8")
    with launched("nats", [str(program), "-c", str(settings)], port, directory) as process:
        process.wait_until(lambda: accepts(port), START_SECONDS)
        yield f"nats://127.0.0.1:{port}", process


@contextlib.contextmanager
def rabbitmq(directory: Path) -> Iterator[tuple[str, Process]]:
    """Runs RabbitMQ from Debian's package; yields its address and process. Its quorum queues sync first.

    Raises:
        Skip: RabbitMQ is not installed.
    """
    program = shutil.which("rabbitmq-server", path=f"{os.environ['PATH']}:/usr/sbin:/usr/lib/rabbitmq/bin")
    if program is None:
        raise Skip("needs rabbitmq-server, which is not installed")
    scripts = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    port, distribution, names = free_port(), free_port(), free_port()
    settings = directory / "rabbitmq.conf"
    settings.write_text(RABBIT_SETTINGS.format(port=port, distribution=distribution), "utf-8")
    environment = {
        "RABBITMQ_NODENAME": f"bench-{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(settings),
        "RABBITMQ_MNESIA_BASE": str(directory),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "ERL_EPMD_PORT": str(names),
    }
    command = [str(scripts[-1] if scripts else program)]
    # Erlang's port mapper. RabbitMQ would start one itself, but that one would outlive RabbitMQ.
    registry = ["epmd", "-address", "127.0.0.1", "-port", str(names)]
    with (
        launched("epmd", registry, names, directory),
        launched("rabbitmq", command, port, directory, environment) as process,
    ):
        process.wait_until(lambda: accepts(port), START_SECONDS)
        yield f"amqp://guest:guest@127.0.0.1:{port}/", process


@contextlib.contextmanager
def kafka(directory: Path) -> Iterator[tuple[str, Process]]:
    """Runs one Kafka broker; yields its address and process. The topic of the bench flushes each message set.

    Raises:
        Skip: This machine has no Java, or Kafka could not be fetched.
        Void: The storage could not be formatted.
    """
    try:
        command, lib = java.find_java(), jars.fetch_jars(KAFKA)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"Kafka {KAFKA_VERSION}: {error}") from error
    port, controller = free_port(), free_port()
    settings = directory / "kafka.properties"
    settings.write_text(KAFKA_SETTINGS.format(port=port, controller=controller, directory=directory), "utf-8")
    java_command = [str(command), "-Xmx1g", "-cp", f"{lib}/*"]
    formatted = subprocess.run(
        [*java_command, "kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22], "-c", str(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    if formatted.returncode:
        raise Void(f"Kafka: {formatted.stdout[-1000:]}{formatted.stderr[-1000:]}")
    with launched("kafka", [*java_command, "kafka.Kafka", str(settings)], port, directory) as process:
        process.wait_until(lambda: accepts(port), START_SECONDS)
        yield f"127.0.0.1:{port}", process


def accepts(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
