"""How the servers of a client are reached: addresses, proxies of the environment, and transports of the caller."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest

from queuey.client import AsyncClient, Client
from queuey.client.calls.call import Call, Timeouts, ignore_answer
from queuey.client.errors import ApiError, InvalidArgument
from queuey.client.http.connections import Connections, ServerEndpoint, make_request
from queuey.client.http.servers import parse_servers

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
FAR = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def endpoints_and_options(addresses: str) -> tuple[list[ServerEndpoint], list[dict[str, Any]]]:
    made: list[dict[str, Any]] = []

    def make(**options: Any) -> object:  # noqa: ANN401 - options of any type
        made.append(options)
        return object()

    servers = parse_servers(addresses, "app")
    connections = Connections(servers, verify=True, make=make, pool=None)
    return [connections.endpoint_of(server) for server in servers], made


@pytest.mark.parametrize(
    ("address", "host", "port", "header"),
    [
        ("http://127.0.0.1:5000", b"127.0.0.1", 5000, b"127.0.0.1:5000"),
        ("http://Queues.Example", b"queues.example", None, b"queues.example"),
        ("https://queues.example:443", b"queues.example", 443, b"queues.example"),
        ("http://[::1]:5000", b"::1", 5000, b"[::1]:5000"),
        ("http://bücher.example", b"xn--bcher-kva.example", None, b"xn--bcher-kva.example"),
        ("http://faß.example", b"xn--fa-hia.example", None, b"xn--fa-hia.example"),
    ],
)
def test_addresses(address: str, host: bytes, port: int | None, header: bytes) -> None:
    """Hosts are sent in the form that goes over the wire, without the port that the scheme has anyway."""
    [endpoint], _ = endpoints_and_options(address)
    assert (endpoint.host, endpoint.port, endpoint.headers[b"host"]) == (host, port, header)


@pytest.mark.parametrize("host", ["ü" * 64, "u" * 64, "a.", "☃"])
def test_a_host_that_cannot_be_is_refused(host: str) -> None:
    """A label of a name has 1 to 63 characters, and no pictures."""
    with pytest.raises(InvalidArgument, match="is not the address of a server"):
        endpoints_and_options(f"http://{host}.example")


@pytest.mark.parametrize(
    ("call", "target", "length"),
    [
        (Call("GET", "q", ignore_answer, (("a", "x y&z"), ("b", "ü"))), b"/p%20q/v1/app/q?a=x%20y%26z&b=%C3%BC", None),
        (Call("POST", "/ünder", ignore_answer), b"/p%20q/%C3%BCnder", b"0"),
        (Call("PUT", "a%2Fb", ignore_answer, content=b"four"), b"/p%20q/v1/app/a%2Fb", b"4"),
        (Call("DELETE", "q", ignore_answer, content=b"\0" * 12), b"/p%20q/v1/app/q", b"12"),
    ],
)
def test_requests(call: Call[None], target: bytes, length: bytes | None) -> None:
    """Paths and queries are encoded once, bodies have their length, and a call's header replaces one of all calls."""
    [endpoint], _ = endpoints_and_options("http://127.0.0.1/p%20q")
    call = Call(call.method, call.path, call.parse, call.params, {"Accept": "text/plain"}, call.content)
    request = make_request(endpoint, call, Timeouts(30.0, 30.0), "Application key")
    headers = dict(request.headers)
    assert request.url.target == target
    assert headers.get(b"content-length") == length
    assert (headers[b"accept"], headers[b"authorization"]) == (b"text/plain", b"Application key")
    assert request.extensions["timeout"] == {"read": 30.0, "write": 30.0, "pool": 30.0, "connect": 5.0}


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies are used for servers on other machines, and never for this machine or for exceptions."""
    monkeypatch.setenv("HTTP_PROXY", FAR)
    monkeypatch.setenv("ALL_PROXY", "http://ann:p%40ss@all.example")
    monkeypatch.setenv("NO_PROXY", "near.example,.inner.example")
    near = "http://near.example,http://a.inner.example:80,http://127.0.0.1:5000,http://[::1]:5000"
    reached, made = endpoints_and_options(f"{near},http://far.example,http://other.example,https://far.example")
    assert len({id(one.pool) for one in reached[:4]}) == 1
    assert reached[4].pool is reached[5].pool
    direct, proxy, of_all = (options["proxy"] for options in made)
    assert direct is None
    assert (proxy.url, proxy.auth) == (httpcore2.URL(f"{FAR}/"), None)
    assert (of_all.url.host, of_all.auth) == (b"all.example", (b"ann", b"p@ss"))


@pytest.mark.parametrize(
    ("exceptions", "address", "direct"),
    [
        ("near.example, *", "http://far.example", True),
        ("near.example, *", "http://10.1.2.3", True),
        ("*.Far.example", "http://a.far.example:5000", True),
        ("*.far.example", "http://far.example", False),
        ("*.ar.example", "http://far.example", False),
        ("x, 10.0.0.0/8", "http://10.1.2.3:5000", True),
        ("10.0.0.0/16", "http://10.1.2.3:5000", False),
        ("fd00::1", "https://[fd00::1]:5000", True),
        ("[fd00::1]", "http://[fd00::1]", True),
        ("fd00::/8,::1", "http://[fe00::1]", False),
    ],
)
def test_exceptions_from_proxies(monkeypatch: pytest.MonkeyPatch, exceptions: str, address: str, direct: bool) -> None:  # noqa: FBT001
    """Networks, IPv6 addresses and stars are known, so that no key of a near server goes to the proxy."""
    monkeypatch.setenv("ALL_PROXY", FAR)
    monkeypatch.setenv("NO_PROXY", exceptions)
    _, [options] = endpoints_and_options(address)
    assert (options["proxy"] is None) is direct


@pytest.mark.parametrize(
    "proxy", ["socks://127.0.0.1:1080/", "http://", "http://h:port", "http://[::1", "ftp://far.example"]
)
def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """An unusable proxy is an error for a remote server, and ignored for one on this machine."""
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(InvalidArgument, match="ALL_PROXY"):
        endpoints_and_options("http://far.example")
    endpoints_and_options("http://127.0.0.1:5000")


def test_certificates_are_checked_unless_told_otherwise() -> None:
    """Only False turns it off, not a setting that is absent."""
    servers = parse_servers("https://far.example", "app")
    made: list[ssl.SSLContext] = []
    for verify in (True, None, False):
        Connections(servers, verify, lambda *, ssl_context, **_: made.append(ssl_context), None)  # type: ignore[arg-type]
    assert [context.verify_mode for context in made] == [ssl.CERT_REQUIRED, ssl.CERT_REQUIRED, ssl.CERT_NONE]


def test_authorities_of_the_environment_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names where they were named."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(InvalidArgument, match="SSL_CERT_FILE"):
        endpoints_and_options("https://far.example")


class Pool(httpcore2.ConnectionPool):
    """A pool that answers by itself."""

    def handle_request(self, request: httpcore2.Request) -> httpcore2.Response:
        return httpcore2.Response(404, content=request.url.target)


def test_a_pool_of_the_caller() -> None:
    """A caller's pool replaces the network, as httpx2's transports do."""
    with Client("http://127.0.0.1:5000", key="", transport=Pool()) as client, pytest.raises(ApiError) as caught:
        client.hello()
    assert (caught.value.status, "/v1/" in str(caught.value)) == (404, True)


async def test_transports_of_httpx() -> None:
    """Transports of httpx2 get whole requests."""
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, json={"version": "1", "store": "sqlite", "id": "0" * 32})

    url = "http://[::1]:5000/prefix"
    with Client(url, key="k", transport=httpx2.MockTransport(answer)) as client:
        assert client.hello().store == "sqlite"
    async with AsyncClient(url, key="k", transport=httpx2.MockTransport(answer)) as coroutines:
        assert (await coroutines.hello()).store == "sqlite"
    assert [str(one.url) for one in requests] == ["http://[::1]:5000/prefix/v1/"] * 2
    assert {one.headers["authorization"] for one in requests} == {"Application k"}
