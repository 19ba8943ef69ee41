"""The connections of a client: made with httpx2, with proxies and certificates as the servers need them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

import queuey
from queuey.client._async.network import AsyncNetwork
from queuey.client._sync.network import Network
from queuey.client.errors import InvalidArgument
from queuey.client.forks import begin_in_children
from queuey.client.http.servers import Server

C = TypeVar("C", httpx2.Client, httpx2.AsyncClient)

CONNECTIONS = 500
"""Max connections of a client; a process often may have no more than 1,024 files."""
_inherited: list[httpx2.Client] = []
"""Clients of a parent process. To drop them would close the parent's connections."""
_PROXIES = frozenset({"all_proxy", "http_proxy", "https_proxy"})


class Connections:
    """The connections of a client for threads. A child process that was forked opens its own."""

    def __init__(
        self,
        servers: Iterable[Server],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
        transport: httpx2.BaseTransport | None,
    ) -> None:
        self._make = partial(_made, httpx2.Client, transport=transport, **_options(servers, verify))
        self._client = self._make()
        self._forked = False
        self._lock = Lock()
        begin_in_children(self)

    def begin_in_child(self) -> None:
        self._forked = True
        self._lock = Lock()

    @property
    def client(self) -> httpx2.Client:
        if self._forked:
            with self._lock:
                if self._forked:
                    _inherited.append(self._client)
                    self._client = self._make()
                    self._forked = False
        return self._client


class AsyncConnections:
    """The connections of a client for async code."""

    def __init__(
        self,
        servers: Iterable[Server],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self.client = _made(httpx2.AsyncClient, transport=transport, **_options(servers, verify))


def _options(
    servers: Iterable[Server],
    verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
) -> dict[str, Any]:
    """Returns what both kinds of httpx2 client are made with."""
    servers = tuple(servers)
    headers = {
        "user-agent": f"queuey-client/{queuey.__version__}",
        "accept": "application/json, application/problem+json",
        "accept-encoding": "gzip",
    }
    hosts = {_pattern(server): None for server in servers if server.local}
    return {
        "headers": headers,
        "verify": _context(servers, verify),
        "trust_env": not _all_plain_and_local(servers),
        # A proxy has no business between a client and its own machine.
        "mounts": hosts,
        "follow_redirects": False,
        # Renewals do not wait for those who wait for messages, however many these are.
        "limits": httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
    }


def _made(kind: type[C], **options: Any) -> C:  # noqa: ANN401 - of either kind
    """Makes a client of httpx2, which reads the environment's proxies.

    Raises:
        InvalidArgument: It cannot use them.
    """
    try:
        client = kind(**options)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        proxies = sorted(name for name in os.environ if name.lower() in _PROXIES and os.environ[name])
        if not proxies:
            raise
        text = f"the proxy of the environment cannot be used ({', '.join(proxies)}): {error}"
        raise InvalidArgument(f"{text}. Name a proxy whose address begins with http://, or unset it") from error
    _bound(client)
    return client


def _bound(client: httpx2.Client | httpx2.AsyncClient) -> None:
    """Makes every step of a client's connections obey :func:`.bounds.ends_in`, those through proxies included.

    httpx2 offers no public way to give its pools another network; a pool asks for a connection when it needs one.

    Raises:
        AttributeError: httpx2 has other names for that than those known here, so calls would have no limit.
    """
    kind = Network if isinstance(client, httpx2.Client) else AsyncNetwork
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001
        if isinstance(transport, httpx2.HTTPTransport | httpx2.AsyncHTTPTransport):
            pool: Any = transport._pool  # noqa: SLF001
            if not isinstance(pool._network_backend, kind):  # noqa: SLF001
                pool._network_backend = kind(pool._network_backend)  # noqa: SLF001


def _pattern(server: Server) -> str:
    host = urlsplit(server.root).hostname or ""
    return f"all://[{host}]" if ":" in host else f"all://{host}"


def _context(
    servers: tuple[Server, ...],
    verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
) -> bool | ssl.SSLContext:
    if isinstance(verify, str | Path):
        try:
            path = Path(verify)
            if path.is_dir():
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
        except OSError as error:
            raise InvalidArgument(f"the certificates {str(verify)!r} cannot be loaded: {error}") from error
    if verify is True and _all_plain_and_local(servers):
        # Nothing will be encrypted, so the authorities need not be loaded, which takes longer than a call. This context
        # would trust no server.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return verify


def _all_plain_and_local(servers: Iterable[Server]) -> bool:
    return all(server.local and server.root.startswith("http://") for server in servers)
