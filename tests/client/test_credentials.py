"""Where the servers and the key come from, and that a key is sent nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from queuey.client import Client, InvalidArgument, Profile, ProfileExposed
from queuey.client.credentials.lookup import find_access, find_credential
from queuey.client.credentials.profile import write_profile
from queuey.client.http.servers import parse_servers

PROFILE = Profile(url="http://127.0.0.1:5000", application="acme", key="profile-key")


@pytest.mark.parametrize(
    ("address", "base", "local"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000/v1/queuey/", True),
        ("http://127.0.0.1:5000/", "http://127.0.0.1:5000/v1/queuey/", True),
        ("http://127.9.9.9/v1/acme", "http://127.9.9.9/v1/acme/", True),
        ("https://queuey.example/v1/acme/", "https://queuey.example/v1/acme/", False),
        ("https://example.org/under/here/v1/acme/", "https://example.org/under/here/v1/acme/", False),
        ("https://example.org/under/", "https://example.org/under/v1/queuey/", False),
        ("http://localhost:1/v1/a%20b/", "http://localhost:1/v1/a%20b/", True),
        ("http://[::1]:5000/v1/acme/", "http://[::1]:5000/v1/acme/", True),
        ("http://127.example.org", "http://127.example.org/v1/queuey/", False),
    ],
)
def test_addresses_name_a_server_or_an_application_on_it(address: str, base: str, local: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Both forms of address work, with or without the last slash."""
    (server,) = parse_servers(address, None)
    assert (server.base, server.local) == (base, local)
    assert base.startswith(server.root)
    assert not server.root.endswith("/")


@pytest.mark.parametrize(
    "address",
    [
        "",
        " , ",
        "127.0.0.1:5000",
        "ftp://127.0.0.1",
        "http://",
        "http://a b",
        "http://host:99999",
        "http://host:0",
        "http://[::1",
        "http://host/v1/acme/queue",
        "http://host/v1/acme?x=1",
        "http://host/#x",
        "http://host\\@evil.example",
        "http://host/v1/a/,http://host/v1/b/",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    """What names no server, or two applications, is an argument error."""
    with pytest.raises(InvalidArgument):
        parse_servers(address, None)


def test_credentials_in_an_address_are_refused_unseen() -> None:
    """A password in an address is refused, and the error does not repeat it."""
    with pytest.raises(InvalidArgument) as caught:
        Client("http://user:hunter2@127.0.0.1")
    assert "hunter2" not in str(caught.value)


def test_an_application_may_not_contradict_the_address() -> None:
    """The application is named once, or the same."""
    assert parse_servers("http://h", "acme") == parse_servers(["http://h/v1/acme/"], None)
    assert len(parse_servers("http://h/v1/acme, http://h , http://g", "acme")) == 2
    with pytest.raises(InvalidArgument):
        parse_servers("http://h/v1/acme/", "other")


def test_arguments_come_before_variables_before_the_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each source counts only where the one before it says nothing."""
    write_profile(PROFILE)
    assert find_access(profile=write_profile(replace(PROFILE, key="other"), tmp_path / "p")).credential.key == "other"
    access = find_access()
    assert (access.servers[0].base, access.credential.key) == ("http://127.0.0.1:5000/v1/acme/", "profile-key")
    monkeypatch.setenv("QUEUEY_KEY", "env-key")
    assert find_access(None, find_credential()).credential.key == "env-key"
    monkeypatch.setenv("QUEUEY_URL", "http://env.example, http://env2.example")
    monkeypatch.setenv("QUEUEY_APP", "env-app")
    access = find_access(None, find_credential())
    assert [server.base for server in access.servers] == [
        "http://env.example/v1/env-app/",
        "http://env2.example/v1/env-app/",
    ]
    access = find_access("http://arg.example/", find_credential("arg-key"), application="arg")
    assert (access.servers[0].base, access.credential.key) == ("http://arg.example/v1/arg/", "arg-key")
    assert find_access("http://arg.example/", find_credential("")).credential.header is None


@pytest.mark.parametrize(
    ("url", "application", "key"),
    [
        ("http://127.0.0.1:5000/v1/acme/", None, "profile-key"),
        ("http://127.0.0.1:5000", "acme", "profile-key"),
        ("http://127.0.0.1:5000", "other", None),
        ("http://127.0.0.1:5001/v1/acme/", None, None),
        ("https://127.0.0.1:5000/v1/acme/", None, None),
        ("http://evil.example/v1/acme/", None, None),
        ("http://127.0.0.1:5000/v1/acme/,http://evil.example/v1/acme/", None, None),
    ],
)
def test_the_profile_key_goes_to_the_profile_servers_only(url: str, application: str | None, key: str | None) -> None:
    """Naming another server or application leaves the profile's key behind."""
    write_profile(PROFILE)
    assert find_access(url, application=application).credential.key == key


def test_an_exposed_profile_is_refused_when_its_key_would_be_used() -> None:
    """A readable profile stops a client that would use it, and no other."""
    write_profile(PROFILE).chmod(0o644)
    with pytest.raises(ProfileExposed):
        Client()
    Client("http://127.0.0.1:5000", key="k").close()


@pytest.mark.parametrize("key", ["a b", "a\r\nX: y", "a;b", "schlüssel", "\x00"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(key: str) -> None:
    """A broken key is refused before it gets into a header, and not repeated."""
    with pytest.raises(InvalidArgument) as caught:
        Client("http://127.0.0.1", key=key)
    assert key not in str(caught.value)


def test_a_key_is_taken_without_surrounding_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trailing newline of files and shells is not part of a key."""
    monkeypatch.setenv("QUEUEY_KEY", "k3y\n")
    access = find_access("http://127.0.0.1", find_credential())
    assert access.credential.header == "Application k3y"
    assert "k3y" not in repr(access)


def test_certificates_that_cannot_be_loaded_are_an_argument_error(tmp_path: Path) -> None:
    """A wrong CA file is noticed when the client is made."""
    with pytest.raises(InvalidArgument, match=r"none\.pem"):
        Client("https://127.0.0.1", key="k", verify=tmp_path / "none.pem")
