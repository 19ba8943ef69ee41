"""The service's nodes in ZooKeeper, by which EmoDB's Java client finds it."""

from __future__ import annotations

import contextlib
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kazoo.exceptions import NoNodeError

from queuey.facades.emodb.registration import Registration, make_emodb_nodes
from tests.acceptance.facades.calls import find_adjacent_free_ports, write_settings_file
from tests.contract.samples import eventually
from tests.qdo.contract.zookeeper import kazoo_client
from tests.servers.plugin import ZooKeeper
from tests.servers.served import Served


@pytest.fixture
def hosts(zookeeper: ZooKeeper) -> str:
    """The ZooKeeper servers, and a root of the test's own."""
    root = f"/{uuid.uuid4().hex}"
    with kazoo_client(zookeeper.connect_string) as client:
        client.create(root)
    return zookeeper.connect_string + root


def read(client: Any, path: str) -> dict[str, Any] | None:  # noqa: ANN401 - kazoo's
    try:
        return dict(msgspec.json.decode(client.get(path)[0]))
    except NoNodeError:
        return None


@pytest.mark.slow
def test_a_service_is_found(hosts: str, tmp_path: Path) -> None:
    """While a service runs, each of its two protocols has a node like those of EmoDB's servers."""
    port = find_adjacent_free_ports()
    text = f'[facades]\nonly = "emodb"\n[facades.emodb]\nzookeeper = "{hosts}"\ncluster = "main"\n'
    with kazoo_client(hosts) as client, Served(tmp_path, write_settings_file(tmp_path, text), port=port) as running:
        for service, path in (("emodb-queue-1", "/queue/1"), ("emodb-dedupq-1", "/dedupq/1")):
            place = f"/ostrich/main-{service}/127.0.0.1:{port}"
            assert eventually(lambda place=place: read(client, place) is not None)  # type: ignore[misc]
            node = read(client, place)
            assert node is not None
            assert (node["name"], node["id"]) == (f"main-{service}", f"127.0.0.1:{port}")
            payload = msgspec.json.decode(node["payload"])
            assert payload["serviceUrl"] == f"http://127.0.0.1:{port}{path}"
            assert payload["adminUrl"] == f"http://127.0.0.1:{port + 1}"
        assert running.end(signal.SIGTERM) == 0
        assert client.get_children("/ostrich/main-emodb-queue-1") == []


@pytest.mark.parametrize("how", ["expired", pytest.param("left by an earlier process", marks=pytest.mark.slow)])
def test_registered_again(hosts: str, how: str) -> None:
    """A registration is renewed after the session has ended, and replaces the node of a dead process."""
    nodes = make_emodb_nodes("", "::1", 8080)
    [path, _] = nodes
    assert path == "/ostrich/emodb-queue-1/[::1]:8080"
    registration = Registration(hosts, nodes)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(kazoo_client(hosts))
        if how != "expired":
            client.create(path, b"{}", ephemeral=True, makepath=True)
        registration.start()
        stack.callback(registration.close)
        registered: Callable[[], bool] = lambda: (read(client, path) or {}).get("id") == "[::1]:8080"  # noqa: E731
        assert eventually(registered)
        if how == "expired":
            before = client.exists(path).ephemeralOwner
            with contextlib.suppress(Exception), kazoo_client(hosts, client_id=registration._client.client_id):
                pass  # Closing the session under its own number ends it.
            assert eventually(lambda: registered() and client.exists(path).ephemeralOwner != before)
