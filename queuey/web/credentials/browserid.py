"""Reads users' BrowserID assertions: ``BrowserID ASSERTION``, checked on this machine.

PyBrowserID checks the signatures and who may speak for a mail address. It asks no server: it would ask any that an
assertion names. The issuers, their keys and the mail domains that they may speak for are settings. Sizes are bounded
here, because its arithmetic is in Python and takes any numbers. See docs/decisions/0024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from browserid.errors import ExpiredSignatureError
from browserid.verifiers.local import LocalVerifier

from queuey.access import parse_principal
from queuey.errors import InvalidAssertion, IssuerUnavailable
from queuey.settings import UserIssuer
from queuey.web.credentials import Identity
from queuey.web.credentials.key_sets import Published
from queuey.web.credentials.strict_json import read_object, read_part
from queuey.web.credentials.user_identity import identity_of, is_time
from queuey.web.credentials.users import Trusted

MAX_ASSERTION = 8192
"""Characters."""
_BITS = {"p": 3072, "q": 256, "g": 3072, "y": 3072, "n": 4096, "e": 33}
"""Of the numbers of a key; those of DSA are written in base 16, those of RSA in base 10."""
_DECIMAL = frozenset({"n", "e"})
_NUMBERS = {"DS": ("p", "q", "g", "y"), "RS": ("n", "e")}
_ALGORITHMS = frozenset({"DS128", "DS256", "RS64", "RS128", "RS256"})


def check_key(key: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON has
    """Returns a public key if it can be used.

    Raises:
        ValueError: It is of another kind, or one of its numbers is too large to calculate with quickly.
    """
    kind = key.get("algorithm") if isinstance(key, dict) else None
    if kind not in _NUMBERS:
        raise ValueError("it has no public key of kind DS or RS")
    for name in _NUMBERS[kind]:
        text = key.get(name)
        base = 10 if name in _DECIMAL else 16
        if not isinstance(text, str) or not re.fullmatch(r"[0-9]+" if base == 10 else r"[0-9a-fA-F]+", text):  # noqa: PLR2004
            raise ValueError(f"the number {name} of its key is not written in base {base}")
        if len(text) > _BITS[name] or not 1 < int(text, base).bit_length() <= _BITS[name]:
            raise ValueError(f"the number {name} of its key does not have 2 to {_BITS[name]} bits")
    return {"algorithm": kind, **{name: key[name] for name in _NUMBERS[kind]}}


class SupportDocument:
    """What an issuer says of itself.

    Args:
        content: The document that BrowserID has at ``/.well-known/browserid``.

    Raises:
        ValueError: It is none, or its key cannot be used.
    """

    def __init__(self, content: bytes) -> None:
        self.key = check_key(read_object(content).get("public-key"))


class _Trusted:
    """Knows the issuers of the settings and no other: what PyBrowserID's manager of documents does, without asking.

    Args:
        trusted: Applications and whom they trust, by the issuer's host.
        documents: By the issuer's host.
    """

    def __init__(self, trusted: Mapping[str, Trusted], documents: Mapping[str, Published[SupportDocument]]) -> None:
        self._trusted = trusted
        self._documents = documents

    def get_key(self, hostname: str) -> dict[str, Any]:
        """Returns the public key of an issuer that is trusted."""
        return self._documents[hostname].get().key

    def is_trusted_issuer(self, hostname: str, issuer: str, *_: object, **__: object) -> bool:
        """Tells whether an application trusts an issuer with the mail addresses of a host."""
        return any(hostname in _domains(each) for _, each in self._trusted.get(issuer, ()))


class BrowserId:
    """Reads assertions by the issuers that applications trust. See :class:`~queuey.web.credentials.Reader`.

    Args:
        trusted: Applications and whom they trust.
        documents: Of each issuer, by its host.
    """

    scheme = "BrowserID"
    believed = 300.0

    def __init__(self, trusted: Trusted, documents: Mapping[str, Published[SupportDocument]]) -> None:
        self._trusted: dict[str, list[tuple[str, UserIssuer]]] = {}
        for application, issuer in trusted:
            self._trusted.setdefault(issuer.issuer, []).append((application, issuer))
        self._verifier = LocalVerifier(supportdocs=_Trusted(self._trusted, documents))

    def read(self, credential: str, now: float) -> Identity:
        """Checks an assertion.

        Raises:
            InvalidAssertion: It is not accepted.
            IssuerUnavailable: The issuer's key is not there.
        """
        if len(credential) > MAX_ASSERTION:
            raise InvalidAssertion(f"The assertion is longer than {MAX_ASSERTION} characters.")
        try:
            certificate, assertion = map(_payload, credential.split("~"))
            name = _user(certificate["principal"]["email"])
            check_key(certificate["public-key"])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise InvalidAssertion("This is no assertion with one certificate of a mail address.") from error
        trusted = self._audience(certificate.get("iss"), assertion.get("aud"), name)
        leeway = min(issuer.leeway for _, issuer in trusted)
        expires = min(_check_times(claims, now, leeway) for claims in (certificate, assertion))
        self._verify(credential, assertion["aud"], now - leeway)
        return identity_of([(application, issuer, name) for application, issuer in trusted], expires)

    def _audience(self, name: object, audience: object, user: str) -> Trusted:
        """Returns the applications for which an assertion is meant."""
        trusted = self._trusted.get(name) if isinstance(name, str) else None
        if trusted is None:
            raise InvalidAssertion("The assertion's issuer is not trusted here.")
        trusted = [each for each in trusted if audience in each[1].audiences]
        if not trusted:
            raise InvalidAssertion("The assertion is for another audience.")
        found = [each for each in trusted if user.rpartition("@")[2] in _domains(each[1])]
        if not found:
            raise InvalidAssertion("The assertion's issuer is not trusted with this mail address.")
        return found

    def _verify(self, credential: str, audience: str, now: float) -> None:
        try:
            self._verifier.verify(credential, audience, now=int(now * 1000))
        except IssuerUnavailable:
            raise
        except ExpiredSignatureError as error:
            raise InvalidAssertion("The assertion has expired.") from error
        except Exception as error:  # its parsing lets errors of any kind through
            raise InvalidAssertion("The assertion's signatures are not valid.") from error


def _payload(token: str) -> dict[str, Any]:
    """Returns what a certificate or an assertion says; the rest is for PyBrowserID to look at."""
    header, payload, _ = token.split(".")
    if read_part(header).get("alg") not in _ALGORITHMS:
        raise ValueError("It is not signed with an algorithm of BrowserID.")
    return read_part(payload)


def _user(mail: object) -> str:
    """Returns the name of a user."""
    name = f"bid:{mail}"
    if not isinstance(mail, str) or parse_principal(name).name != name:
        raise ValueError("It has something beside a mail address.")
    return name


def _domains(issuer: UserIssuer) -> tuple[str, ...]:
    return issuer.domains or (issuer.issuer,)


def _check_times(claims: Mapping[str, Any], now: float, leeway: float) -> float:
    """Returns when a certificate or an assertion ends, in seconds since 1970; they have milliseconds."""
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    if "exp" not in times or not all(is_time(value, 1000) for value in times.values()):
        raise InvalidAssertion("The assertion does not say when it ends, or its times are no milliseconds since 1970.")
    if times["exp"] / 1000 + leeway <= now:
        raise InvalidAssertion("The assertion has expired.")
    if max(times.get("nbf", 0), times.get("iat", 0)) / 1000 > now + leeway:
        raise InvalidAssertion("The assertion is not valid yet.")
    return float(times["exp"] / 1000 + leeway)
