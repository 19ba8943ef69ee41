"""Issuers whose keys change, hang, grow or disappear: only their own users notice, and no request waits long."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import msgspec
import pytest

from queuey.access.credentials.bearer import Bearer, KeySet
from queuey.access.credentials.code_flow import read_discovery
from queuey.access.credentials.key_sets import (
    LOAD_INTERVAL,
    MAX_AGE,
    MAX_DOCUMENT_BYTES,
    RETRY_INTERVAL,
    IssuerDocument,
)
from queuey.model.errors import InvalidToken, IssuerUnavailable, SettingsError
from queuey.settings import UserIssuer
from queuey.storage import bridge
from tests.access.test_credentials import Clock
from tests.access.users.issuer import AUDIENCE, Behaviour, Issuer, KeyServer, serving
from tests.waiting import until

THREAD_TIMEOUT = 60.0
"""Seconds within which a thread of the test gets its turn on a busy machine."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer() -> Issuer:
    """The issuer that the application trusts."""
    return Issuer()


@pytest.fixture
def server(issuer: Issuer) -> Iterator[KeyServer]:
    with serving(issuer.make_key_set()) as key_server:
        yield key_server


@pytest.fixture
def keys(issuer: Issuer, server: KeyServer, clock: Clock) -> IssuerDocument[KeySet]:
    """The issuer's keys, not loaded yet."""
    return IssuerDocument(issuer.name, server.url, KeySet, clock=clock, wait=THREAD_TIMEOUT, fetch=THREAD_TIMEOUT)


@pytest.fixture
def reader(issuer: Issuer, server: KeyServer, keys: IssuerDocument[KeySet]) -> Bearer:
    trusted = UserIssuer(issuer=issuer.name, audience=AUDIENCE, keys=server.url)
    return Bearer([("shop", trusted)], {issuer.name: keys})


def read(reader: Bearer, token: str) -> str:
    """Returns ``let in`` for a valid token, or the code of the refusal."""
    try:
        bridge.run(reader.read(token, time.time()))
    except (InvalidToken, IssuerUnavailable) as error:
        return error.code
    return "let in"


def settle(keys: IssuerDocument[KeySet]) -> None:
    until(lambda: not keys._loading)


def test_a_new_key_is_found_at_its_first_token(reader: Bearer, issuer: Issuer, server: KeyServer, clock: Clock) -> None:
    """When the issuer signs with a new key, its keys are loaded again, and the old one is not good any more."""
    old = issuer.token("ann")
    assert read(reader, old) == "let in"
    issuer.rotate("second")
    server.content = issuer.make_key_set()
    clock.now += RETRY_INTERVAL
    assert read(reader, issuer.token("ann")) == "let in"
    assert read(reader, old) == "InvalidToken"
    assert server.asked == 2


def test_unknown_keys_do_not_make_the_issuer_busy(
    reader: Bearer, issuer: Issuer, server: KeyServer, clock: Clock
) -> None:
    """However many tokens name keys that there are not, the issuer is asked once in ten seconds."""
    assert read(reader, issuer.token("ann")) == "let in"
    for number in range(50):
        assert read(reader, issuer.token(headers={"kid": str(number)})) == "InvalidToken"
    assert server.asked == 1
    clock.now += RETRY_INTERVAL
    for number in range(50):
        assert read(reader, issuer.token(headers={"kid": str(number)})) == "InvalidToken"
    assert server.asked == 2
    assert read(reader, issuer.token("ann")) == "let in"


@pytest.mark.parametrize("behaviour", ["grow", "redirect", "fail", "compress"])
def test_an_answer_that_cannot_be_used(
    reader: Bearer, issuer: Issuer, server: KeyServer, clock: Clock, behaviour: Behaviour
) -> None:
    """Without keys a token is neither good nor bad: 503, soon; when the issuer is back, its users are let in."""
    server.behaviour = behaviour
    assert read(reader, issuer.token("ann")) == "IssuerUnavailable"
    requests = server.asked
    assert read(reader, issuer.token("ann")) == "IssuerUnavailable"
    assert server.asked == requests
    server.behaviour = "serve"
    clock.now += RETRY_INTERVAL
    assert read(reader, issuer.token("ann")) == "let in"


def test_a_request_does_not_wait_for_long(issuer: Issuer, server: KeyServer) -> None:
    """The request that waits is refused while the issuer is still being asked, and no later one waits for the same."""
    keys = IssuerDocument(issuer.name, server.url, KeySet, wait=0.01, fetch=THREAD_TIMEOUT)
    server.behaviour = "hang"
    for seconds in (0.01, THREAD_TIMEOUT):
        keys.wait_seconds = seconds
        with pytest.raises(IssuerUnavailable) as caught:
            keys.get()
        assert keys._loading
    assert (caught.value.retry_after, caught.value.outcome) == (1, "none")


def test_keys_stay_good_while_the_issuer_is_away(
    reader: Bearer, issuer: Issuer, server: KeyServer, keys: IssuerDocument[KeySet], clock: Clock
) -> None:
    """Keys that were loaded are used for an hour if they cannot be loaded again; a new key cannot be judged then."""
    assert read(reader, issuer.token("ann")) == "let in"
    server.behaviour = "fail"
    clock.now += LOAD_INTERVAL + 1
    assert read(reader, issuer.token("ann")) == "let in"
    settle(keys)
    assert read(reader, issuer.token("ann")) == "let in"
    assert read(reader, issuer.token(headers={"kid": "new"})) == "IssuerUnavailable"
    clock.now += MAX_AGE - LOAD_INTERVAL - 2
    assert read(reader, issuer.token("ann")) == "let in"
    settle(keys)
    clock.now += 2
    assert read(reader, issuer.token("ann")) == "IssuerUnavailable"


def test_one_issuer_is_no_trouble_for_users_of_another(issuer: Issuer, server: KeyServer) -> None:
    """While one issuer hangs and a request waits for it, tokens of another are read."""
    server.behaviour = "hang"
    other = Issuer("https://login.example.com")
    with serving(other.make_key_set()) as well, ThreadPoolExecutor(1) as pool:
        trusted = [
            UserIssuer(issuer=each.name, audience=AUDIENCE, keys=at.url)
            for each, at in ((issuer, server), (other, well))
        ]
        keys = {
            each.issuer: IssuerDocument(each.issuer, each.keys, KeySet, wait=THREAD_TIMEOUT, fetch=THREAD_TIMEOUT)
            for each in trusted
        }
        reader = Bearer([("shop", each) for each in trusted], keys)
        waiting = pool.submit(read, reader, issuer.token("ann"))
        until(lambda: keys[issuer.name]._waited)
        assert read(reader, other.token("ann")) == "let in"
        assert not waiting.done()
        server.closing.set()
        assert waiting.result(THREAD_TIMEOUT) == "IssuerUnavailable"


def test_the_first_request_finds_the_keys(
    keys: IssuerDocument[KeySet], reader: Bearer, issuer: Issuer, server: KeyServer
) -> None:
    """A service that starts begins to load the keys before anybody asks."""
    keys.start()
    settle(keys)
    assert read(reader, issuer.token("ann")) == "let in"
    assert server.asked == 1


def test_a_file_of_keys(tmp_path: Path, issuer: Issuer, clock: Clock) -> None:
    """A file is read at the start, and again when a token names a key that it did not have."""
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.make_key_set())
    keys = IssuerDocument(issuer.name, str(file), KeySet, clock=clock)
    keys.start()
    reader = Bearer([("shop", UserIssuer(issuer=issuer.name, audience=AUDIENCE, keys=str(file)))], {issuer.name: keys})
    assert read(reader, issuer.token("ann")) == "let in"
    issuer.rotate("second")
    file.write_bytes(issuer.make_key_set())
    clock.now += RETRY_INTERVAL
    assert read(reader, issuer.token("ann")) == "let in"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"[]", "not an object"),
        (b"{}", "no list of at most 64 keys"),
        (b'{"keys": []}', "no key that can be used"),
        (b'{"keys": [' + b",".join([b"{}"] * 65) + b"]}", "at most 64 keys"),
        (b" " * (MAX_DOCUMENT_BYTES + 1), "more than 262,144 bytes"),
        (b"[" * 200_000, "objects and lists"),
        (None, "No such file"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value)[:20],
)
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: bytes | None, words: str) -> None:
    """The message names the issuer, the file and its defect."""
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=words) as caught:
        IssuerDocument("https://accounts.example.org", str(file), KeySet).start()
    assert "https://accounts.example.org" in str(caught.value)
    assert str(file) in str(caught.value)


def test_weak_keys_are_passed_over(issuer: Issuer) -> None:
    """RSA keys that are too short, too long or have a huge exponent are not used."""

    def number(bits: int) -> str:
        return urlsafe_b64encode(((1 << bits) - 1).to_bytes(bits // 8)).rstrip(b"=").decode()

    for modulus, exponent in ((1024, 24), (16384, 24), (2048, 64), (2048, 2048)):
        issuer.keys = {}
        issuer.further = [{"kty": "RSA", "kid": "a", "n": number(modulus), "e": number(exponent)}]
        with pytest.raises(ValueError, match="no key that can be used"):
            KeySet(issuer.make_key_set())
    issuer.further = [{"kty": "RSA", "kid": "a", "n": number(2048), "e": "AQAB"}]
    assert KeySet(issuer.make_key_set()).find("a", "RS256") is not None


# Addresses that the document of an OpenID provider may name


NAMES_OF_LOOPBACK = ("localhost", "localhost.", "a.localhost", "127.1", "2130706433", "0.0.0.0")
LOCAL_HOSTS = (*NAMES_OF_LOOPBACK, "[::1]", "[::]", "[::ffff:127.0.0.1]")


def test_a_provider_elsewhere_names_nothing_of_this_machine() -> None:
    """The document of a provider with https cannot have the service ask what listens on loopback alone."""
    far = "https://accounts.example.org"
    content = {"issuer": far, "authorization_endpoint": f"{far}/a", "token_endpoint": f"{far}/t"}
    assert read_discovery(far, msgspec.json.encode(content)).token == f"{far}/t"
    endpoints = ("authorization_endpoint", "token_endpoint")
    for scheme, host, name in product(("http", "hTtP", "HTTPS"), LOCAL_HOSTS, endpoints):
        with pytest.raises(ValueError, match=name):
            read_discovery(far, msgspec.json.encode(content | {name: f"{scheme}://{host}:9200/_shutdown"}))


@pytest.mark.parametrize("url", ["HTTP://accounts.example.org/t", "http://198.51.100.7/t"])
def test_a_provider_on_this_machine_may_name_it(url: str) -> None:
    """A provider of a developer is on loopback with http; elsewhere it needs https as well."""
    local = "http://127.0.0.1:8080"
    content = {"issuer": local, "authorization_endpoint": f"{local}/a", "token_endpoint": f"{local.upper()}/t"}
    assert read_discovery(local, msgspec.json.encode(content)).authorization == f"{local}/a"
    with pytest.raises(ValueError, match="token_endpoint"):
        read_discovery(local, msgspec.json.encode(content | {"token_endpoint": url}))


def test_a_key_that_was_taken_back_is_good_for_a_while(
    reader: Bearer, issuer: Issuer, server: KeyServer, keys: IssuerDocument[KeySet], clock: Clock
) -> None:
    """Without a token by a new key the set is loaded again when it is five minutes old, while the old one is used."""
    old = issuer.token("ann")
    assert read(reader, old) == "let in"
    issuer.rotate("second")
    server.content = issuer.make_key_set()
    clock.now += LOAD_INTERVAL + 1
    read(reader, old)
    settle(keys)
    assert read(reader, old) == "InvalidToken"


def test_an_answer_that_takes_too_long_is_given_up(
    reader: Bearer, issuer: Issuer, server: KeyServer, keys: IssuerDocument[KeySet], clock: Clock
) -> None:
    """Its time is bounded although bytes still come; when the issuer is well again, its users are let in."""
    server.behaviour = "drip"
    keys.fetch_seconds = 0.2
    assert read(reader, issuer.token("ann")) == "IssuerUnavailable"
    assert "0.2 s" in keys._failure
    assert not keys._loading
    server.behaviour = "serve"
    keys.fetch_seconds = THREAD_TIMEOUT
    clock.now += RETRY_INTERVAL
    assert read(reader, issuer.token("ann")) == "let in"
