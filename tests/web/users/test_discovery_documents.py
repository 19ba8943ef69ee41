"""Addresses that the document of an OpenID provider may name."""

from __future__ import annotations

import msgspec
import pytest

from queuey.web.credentials.code_flow import read_discovery

LOCAL_HOSTS = [
    "localhost",
    "LocalHost",
    "localhost.",
    "a.localhost",
    "127.0.0.1",
    "127.1",
    "0x7f.1",
    "2130706433",
    "0.0.0.0",
    "[::1]",
    "[::]",
]
LOCAL_HOSTS += ["[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]"]


@pytest.mark.parametrize("scheme", ["http", "HTTP", "hTtP", "https", "HTTPS"])
@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_a_provider_elsewhere_names_nothing_of_this_machine(scheme: str, host: str) -> None:
    """The document of a provider with https cannot have the service ask what listens on loopback alone."""
    far, near = "https://accounts.example.org", f"{scheme}://{host}:9200/_shutdown"
    content = {"issuer": far, "authorization_endpoint": f"{far}/a", "token_endpoint": f"{far}/t"}
    assert read_discovery(far, msgspec.json.encode(content)).token == f"{far}/t"
    for name in ("authorization_endpoint", "token_endpoint"):
        with pytest.raises(ValueError, match=name):
            read_discovery(far, msgspec.json.encode(content | {name: near}))


@pytest.mark.parametrize("url", ["HTTP://accounts.example.org/t", "http://198.51.100.7/t"])
def test_a_provider_on_this_machine_may_name_it(url: str) -> None:
    """A provider of a developer is on loopback with http; elsewhere it needs https as well."""
    local = "http://127.0.0.1:8080"
    content = {"issuer": local, "authorization_endpoint": f"{local}/a", "token_endpoint": f"{local.upper()}/t"}
    assert read_discovery(local, msgspec.json.encode(content)).authorization == f"{local}/a"
    with pytest.raises(ValueError, match="token_endpoint"):
        read_discovery(local, msgspec.json.encode(content | {"token_endpoint": url}))
