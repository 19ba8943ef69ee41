"""Servers in containers, if a Docker engine answers. Without one, only this module is imported."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
ENGINE_SECONDS = 5
PULL_SECONDS = 600
ZOOKEEPER_PORT = 2181


def offers(image: str) -> bool:
    """Returns whether a Docker engine answers and has the image, or pulls it now."""
    if not listens(os.environ.get("DOCKER_HOST", DEFAULT_ENGINE)):
        return False
    import docker  # noqa: PLC0415 - slow to import, and rarely needed
    from docker.errors import DockerException  # noqa: PLC0415 - as above

    try:
        with contextlib.closing(docker.from_env(timeout=PULL_SECONDS)) as client:
            if not client.images.list(name=image):
                client.images.pull(image)
    except (DockerException, OSError):
        return False
    return True


def listens(engine: str) -> bool:
    """Returns whether a server listens at an address in the form of ``DOCKER_HOST``.

    Docker's own client leaves a socket open if none does, which is an error in these tests.
    """
    address = urlsplit(engine)
    try:
        if address.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(ENGINE_SECONDS)
                probe.connect(address.path)
        elif address.scheme in {"tcp", "http", "https"}:
            socket.create_connection((address.hostname or "", address.port or 2375), ENGINE_SECONDS).close()
        else:
            return False
    except OSError:
        return False
    return True


@contextlib.contextmanager
def cassandra(image: str) -> Iterator[tuple[str, int]]:
    from testcontainers.community.cassandra import CassandraContainer  # noqa: PLC0415 - slow to import, and seldom needed

    container = CassandraContainer(image)
    container.with_env("MAX_HEAP_SIZE", "512M").with_env("HEAP_NEWSIZE", "128M")
    with container:
        host, port = container.get_contact_points()[0]
        yield host, int(port)


@contextlib.contextmanager
def zookeeper(image: str) -> Iterator[tuple[str, int]]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - slow to import, and rarely needed
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy  # noqa: PLC0415 - as above

    container = DockerContainer(image).with_exposed_ports(ZOOKEEPER_PORT)
    with container.waiting_for(LogMessageWaitStrategy("binding to port")):
        yield container.get_container_host_ip(), int(container.get_exposed_port(ZOOKEEPER_PORT))
