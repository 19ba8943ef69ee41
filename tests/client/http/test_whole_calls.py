"""The limit of a whole call, which hangs on names that the HTTP library does not promise to keep."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from queuey.client._async.sender import AsyncNetwork
from queuey.client._sync.sender import Network
from queuey.client.http.connections import AsyncConnections, Connections
from queuey.client.http.servers import parse_servers

PROXIES = {"HTTP_PROXY": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "example.net"}


def transports(client: httpx2.Client | httpx2.AsyncClient) -> list[Any]:
    """Every way of a client to a server: directly, and through each proxy."""
    return [one for one in (client._transport, *client._mounts.values()) if one is not None]


@pytest.mark.parametrize("server", ["https://example.org", "http://127.0.0.1:5000"])
def test_every_connection_obeys_the_limit(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """All pools of both clients have the network that ends with the call: a library that renames it fails here."""
    for name, value in PROXIES.items():
        monkeypatch.setenv(name, value)
    servers = parse_servers(server, None)
    plain = Connections(servers, verify=True, transport=None, network=Network)
    coroutines = AsyncConnections(servers, verify=True, transport=None, network=AsyncNetwork)
    for client, network in ((plain.client, Network), (coroutines.client, AsyncNetwork)):
        found = transports(client)
        assert found
        assert all(isinstance(one._pool._network_backend, network) for one in found)


@pytest.mark.parametrize("name", ["_pool", "_network_backend"])
def test_a_library_with_other_names_is_an_error(name: str) -> None:
    """A client whose calls would have no limit is not made."""
    transport = httpx2.HTTPTransport()
    owner: Any = transport if name == "_pool" else transport._pool
    owner.renamed = owner.__dict__.pop(name)
    with pytest.raises(AttributeError, match=name):
        Connections(parse_servers("http://127.0.0.1", None), verify=True, transport=transport, network=Network)


def test_a_transport_of_the_caller_needs_no_pool() -> None:
    """Transports that have no connections of their own, as in tests, work."""
    transport = httpx2.MockTransport(lambda _request: httpx2.Response(200))
    made = Connections(parse_servers("http://127.0.0.1", None), verify=True, transport=transport, network=Network)
    assert made.client._transport is transport
