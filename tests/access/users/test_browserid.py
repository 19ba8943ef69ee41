"""Users with BrowserID assertions: real ones, verified locally, from issuers that the settings name and no others."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from browserid import jwt as signed
from browserid.tests.support import get_keypair, make_assertion
from browserid.utils import bundle_certs_and_assertion

from queuey.access.credentials import users as makers
from queuey.access.credentials.readers import digest_of
from queuey.access.credentials.users import make_readers
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.model.errors import SettingsError
from queuey.settings import UserIssuer
from queuey.storage import Store, bridge
from tests.access.users.issuer import encode_part
from tests.replacing import replace_in
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller

ISSUER, MAIL, AUDIENCE = "login.example.org", "ann@example.org", "https://queuey.example.org"
QUEUE = "inbox-bid.ann@example.org"
PUBLIC, PRIVATE = get_keypair(MAIL)
ISSUER_KEY = get_keypair(ISSUER)[1]


def milliseconds(seconds: float = 60) -> int:
    return int((time.time() + seconds) * 1000)


def certificate(key: Any = ISSUER_KEY, **claims: object) -> str:  # noqa: ANN401 - a key of PyBrowserID's
    """Returns an issuer's certificate of a user's key; a claim that is None is left out."""
    usual = {"iss": ISSUER, "exp": milliseconds(), "principal": {"email": MAIL}, "public-key": PUBLIC}
    return str(signed.generate({name: value for name, value in {**usual, **claims}.items() if value is not None}, key))


def bundle(*certificates: str, key: Any = PRIVATE, **claims: object) -> str:  # noqa: ANN401 - a key of PyBrowserID's
    usual = {"exp": milliseconds(), "aud": AUDIENCE}
    content = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return str(bundle_certs_and_assertion(list(certificates) or [certificate()], signed.generate(content, key)))


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    for host in (ISSUER, "other.example.net"):
        (tmp_path / host).write_text(json.dumps({"public-key": get_keypair(host)[0], "provisioning": "/provision"}))
    return tmp_path


@pytest.fixture
def users(documents: Path) -> Mapping[str, tuple[UserIssuer, ...]]:
    """Users of applications that trust one issuer each."""
    ours = UserIssuer(
        scheme="BrowserID",
        issuer=ISSUER,
        audience=AUDIENCE,
        keys=str(documents / ISSUER),
        domains=("example.org", "example.com"),
        queues={"inbox-{user}": ("read", "delete")},
    )
    theirs = UserIssuer(
        scheme="BrowserID",
        issuer="other.example.net",
        audience="https://guest.example.org",
        keys=str(documents / "other.example.net"),
        domains=("example.org",),
        queues={"inbox-{user}": ("read",)},
    )
    return {"queuey": (ours,), "guest": (theirs,)}


@pytest.fixture
def app(store: Store, users: Mapping[str, tuple[UserIssuer, ...]], monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """The application, which cannot reach any issuer."""

    def refuse(*_: object) -> None:
        raise AssertionError("a server was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name, key in (("queuey", KEY), ("guest", GUEST_KEY)):
        bridge.run(store.applications.create_application(name))
        bridge.run(store.applications.add_key(name, digest_of(key)))
    return make_app(store, readers=make_readers(users), private=users.keys())


def caller_with(app: App, assertion: str, base: str = "/v1/queuey") -> Caller:
    return Caller(app, f"BrowserID {assertion}", base)


def test_a_user_reads_and_deletes_in_the_own_queue(owner: Caller, app: App) -> None:
    """What PyBrowserID's own helper makes is accepted, as long as it is good."""
    sent = owner.post(owner.create(QUEUE), "hello")
    ann = caller_with(app, make_assertion(MAIL, AUDIENCE, issuer=ISSUER))
    assert ann.get(QUEUE).bodies == ["hello"]
    assert ann("DELETE", f"{QUEUE}/{sent['key']}").status == 200
    assert ann("POST", QUEUE, "x").status == 403
    assert caller_with(app, make_assertion("bob@example.com", AUDIENCE, issuer=ISSUER)).get(QUEUE).status == 403


def test_an_assertion_is_for_one_application(owner: Caller, guest: Caller, app: App) -> None:
    """A mail address that one application trusts opens nothing of another application with the same principal."""
    owner.create("team", principles=f"bid:{MAIL}=read")
    mine = Caller(guest.app, guest.authorization, "/v1/guest")
    mine.create(QUEUE)
    mine.create("team", principles=f"bid:{MAIL}=read")
    theirs = make_assertion(MAIL, "https://guest.example.org", issuer="other.example.net")
    assert [caller_with(app, theirs, "/v1/guest").get(name).status for name in (QUEUE, "team")] == [200, 200]
    assert [caller_with(app, theirs).get(name).status for name in (QUEUE, "team")] == [403, 403]
    assert [caller_with(app, bundle(), "/v1/guest").get(name).status for name in (QUEUE, "team")] == [403, 403]


FORM, TIMES = "not an assertion with one certificate", "has no expiry"
SIGNATURES, EXPIRED, ISSUERS = "signatures are not valid", "has expired", "issuer is not trusted here"
AUDIENCES, MAILS, EARLY = "for another audience", "not trusted with this mail address", "is not valid yet"
EVIL = get_keypair("evil.example.org")[1]
ATTACKS: Mapping[str, tuple[Callable[[], str], str]] = {
    "no assertion": (lambda: "x", FORM),
    "too long": (lambda: bundle(x="y" * 9000), "is longer than"),
    "the older form": (lambda: str(make_assertion(MAIL, AUDIENCE, issuer=ISSUER, new_style=False)), FORM),
    "two certificates": (lambda: bundle(certificate(), certificate()), FORM),
    "unsigned": (
        lambda: f"{certificate()}~{encode_part({'alg': 'none'})}.{encode_part({'exp': 1, 'aud': AUDIENCE})}.",
        FORM,
    ),
    "another class as the algorithm": (
        lambda: bundle().replace(encode_part({"alg": "DS128"}), encode_part({"alg": "DS"})),
        FORM,
    ),
    "signature of the certificate changed": (
        lambda: str(make_assertion(MAIL, AUDIENCE, issuer=ISSUER, certificate_sig=b"x" * 40)),
        SIGNATURES,
    ),
    "certificate by somebody else": (lambda: bundle(certificate(EVIL)), SIGNATURES),
    "issuer that nobody trusts": (lambda: bundle(certificate(EVIL, iss="evil.example.org")), ISSUERS),
    "issuer of another application": (
        lambda: str(make_assertion(MAIL, AUDIENCE, issuer="other.example.net")),
        AUDIENCES,
    ),
    "mail address of another domain": (lambda: str(make_assertion("ann@example.net", AUDIENCE, issuer=ISSUER)), MAILS),
    "mail address with a right": (lambda: bundle(certificate(principal={"email": MAIL + "=read"})), FORM),
    "two mail addresses": (lambda: bundle(certificate(principal={"email": [MAIL, "bob@example.org"]})), FORM),
    "no key": (lambda: bundle(certificate(**{"public-key": None})), FORM),
    "another audience": (lambda: bundle(aud="https://evil.example.org"), AUDIENCES),
    "expired": (lambda: bundle(exp=milliseconds(-120)), EXPIRED),
    "expired certificate": (lambda: bundle(certificate(exp=milliseconds(-120))), EXPIRED),
    "not valid yet": (lambda: bundle(nbf=milliseconds(120)), EARLY),
    "no end": (lambda: bundle(exp=None), TIMES),
    "end that is a text": (lambda: bundle(certificate(exp=str(milliseconds()))), TIMES),
    "huge numbers of RSA": (
        lambda: bundle(
            certificate(**{"public-key": {"algorithm": "RS", "n": str((1 << 6000) - 1), "e": str((1 << 6000) - 1)}})
        ),
        FORM,
    ),
}
"""What is wrong: the assertion, made when it is needed, and words of the refusal."""


def test_a_wrong_assertion_lets_nobody_in(owner: Caller, app: App) -> None:
    """The answer is 401 with scheme and reason, repeats nothing of the assertion, and no issuer is contacted."""
    owner.create(QUEUE)
    for attack, (make, words) in ATTACKS.items():
        assertion = make()
        reply = caller_with(app, assertion).get(QUEUE)
        assert (reply.status, list(reply.errors)) == (401, ["InvalidBrowserID"]), (attack, reply)
        assert words in reply.errors["InvalidBrowserID"], attack
        assert reply.headers["WWW-Authenticate"] == 'BrowserID realm="queuey"'
        assert not any(part in reply.text for part in assertion.split(".") if len(part) > 3), attack
        assert caller_with(app, bundle()).get(QUEUE).status == 200, attack


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "no public key"),
        ('{"public-key": {"algorithm": "DS", "p": "ff"}}', "the number q"),
        ('{"public-key": {"algorithm": "RS", "n": "x", "e": "3"}}', "the number n"),
        ('{"authority": "evil.example.org"}', "no public key"),
    ],
)
def test_a_document_that_cannot_be_used_stops_the_start(
    documents: Path, users: Mapping[str, tuple[UserIssuer, ...]], content: str, words: str
) -> None:
    """The message names the issuer and the defect of its document. Authority is never delegated."""
    (documents / ISSUER).write_text(content)
    with pytest.raises(SettingsError, match=words) as caught:
        make_readers(users)
    assert ISSUER in str(caught.value)


def test_a_reader_that_is_not_installed(users: Mapping[str, tuple[UserIssuer, ...]]) -> None:
    """A start without the reader says so."""
    with (
        replace_in(makers, entry_points, lambda **_: []),
        pytest.raises(SettingsError, match="BrowserID need a part of Queuey that is not installed"),
    ):
        make_readers(users)


@pytest.mark.needs_programs
def test_a_service_without_users_loads_nothing_for_them() -> None:
    """What checks tokens and assertions is imported where there are users."""
    program = (
        "import sys, queuey.app.serve, queuey.app.application\n"
        "assert not {'jwt', 'browserid', 'cryptography', 'httpx2', 'requests'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
