"""Verifies users' BrowserID assertions (``BrowserID ASSERTION``) on this machine.

PyBrowserID implements the protocol: which keys sign what, and which hosts may issue for a mail address. Two of its
parts are replaced. It does not query servers, because an assertion could name any server: the issuers, their keys and
their mail domains are settings. And OpenSSL checks the signatures. See docs/decisions/libraries.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from browserid.errors import ExpiredSignatureError
from browserid.jwt import JWT, parse
from browserid.verifiers.local import LocalVerifier
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from queuey.access.credentials.key_sets import IssuerDocument
from queuey.access.credentials.readers import Identity
from queuey.access.credentials.strict_json import read_object, read_part
from queuey.access.credentials.user_identity import Trusted, User, identity_of, is_time
from queuey.model.errors import InvalidAssertion, IssuerUnavailable
from queuey.model.rights import parse_principal
from queuey.settings import UserIssuer
from queuey.storage.deadlines import in_thread

MAX_ASSERTION_LENGTH = 8192
MAX_KEY_BITS = 4096
_ALGORITHMS: Mapping[str, tuple[hashes.HashAlgorithm, int]] = {
    "DS128": (hashes.SHA1(), 20),  # noqa: S303 - as BrowserID has it
    "DS256": (hashes.SHA256(), 32),
    "RS64": (hashes.SHA256(), 0),
    "RS128": (hashes.SHA256(), 0),
    "RS256": (hashes.SHA256(), 0),
}
"""Hash by algorithm, and the bytes of each of the two numbers of a DSA signature (0 for RSA)."""
PublicKey = rsa.RSAPublicKey | dsa.DSAPublicKey


def read_key(key: object) -> PublicKey:
    """Reads a public key from a document. Numbers are in base 16 for DSA (``DS``) and in base 10 for RSA (``RS``).

    Raises:
        ValueError: The value is not a public key, or has another algorithm or an unsupported size.
    """
    if not isinstance(key, dict):
        raise ValueError("it has no public key")  # noqa: TRY004 - of a document, not of an argument
    if key.get("algorithm") == "RS":
        n, e = (_read_number(key, name, 10) for name in ("n", "e"))
        return rsa.RSAPublicNumbers(e, n).public_key()
    if key.get("algorithm") != "DS":
        raise ValueError("it has no public key with the algorithm DS or RS")
    p, q, g, y = (_read_number(key, name, 16) for name in ("p", "q", "g", "y"))
    return dsa.DSAPublicNumbers(y, dsa.DSAParameterNumbers(p, q, g)).public_key()


def _read_number(key: Mapping[str, Any], name: str, base: int) -> int:
    text = key.get(name)
    digits = _NUMBER_PATTERNS[base]
    if not isinstance(text, str) or digits.fullmatch(text) is None or int(text, base).bit_length() > MAX_KEY_BITS:
        raise ValueError(f"the number {name} of its key is not one of at most {MAX_KEY_BITS} bits in base {base}")
    return int(text, base)


_NUMBER_PATTERNS = {10: re.compile(r"[0-9]{1,1300}"), 16: re.compile(r"[0-9a-fA-F]{1,1100}")}


class _Signed(JWT):  # type: ignore[misc] # PyBrowserID has no types
    """A token with its signature checked by OpenSSL. PyBrowserID's own arithmetic in Python takes 20 times as long."""

    def check_signature(self, key_data: object) -> bool:
        key = read_key(key_data)
        digest, size = _ALGORITHMS[self.algorithm]
        data = self.signed_data.encode("ascii")
        try:
            if isinstance(key, rsa.RSAPublicKey) and not size:
                key.verify(self.signature, data, padding.PKCS1v15(), digest)
            elif isinstance(key, dsa.DSAPublicKey) and len(self.signature) == 2 * size:
                r, s = (int.from_bytes(part) for part in (self.signature[:size], self.signature[size:]))
                key.verify(encode_dss_signature(r, s), data, digest)
            else:
                return False
        except InvalidSignature:
            return False
        return True


class _Verifier(LocalVerifier):  # type: ignore[misc] # PyBrowserID has no types
    def parse_jwt(self, data: str) -> JWT:
        token = parse(data)
        return _Signed(token.algorithm, token.payload, token.signature, token.signed_data)


class SupportDocument:
    """The support document of an issuer.

    Raises:
        ValueError: The content is not a support document, or its key cannot be used.
    """

    def __init__(self, content: bytes) -> None:
        self.key = read_object(content).get("public-key")
        read_key(self.key)


class _Trusted:
    """Replaces PyBrowserID's manager of support documents. It knows only the issuers in the settings.

    PyBrowserID asks whether ``issuer``, a host, is trusted with ``hostname``, the domain of a mail address. An issuer
    without mail domains in the settings is trusted with its own host.

    Args:
        trusted: Applications and the issuers that they trust, by the issuer's host.
        documents: Support documents by the issuer's host.
    """

    def __init__(
        self, trusted: Mapping[str, Trusted], documents: Mapping[str, IssuerDocument[SupportDocument]]
    ) -> None:
        self._trusted = trusted
        self._documents = documents

    def get_key(self, hostname: str) -> object:
        return self._documents[hostname].get().key

    def is_trusted_issuer(self, hostname: str, issuer: str, *_: object, **__: object) -> bool:
        return any(hostname in _mail_domains(trusted) for _, trusted in self._trusted.get(issuer, ()))


class BrowserId:
    """Verifies assertions of the issuers that applications trust, as a :class:`~.readers.CredentialReader`."""

    scheme = "BrowserID"
    document = SupportDocument
    max_cache_seconds = 300.0

    def __init__(self, trusted: Trusted, documents: Mapping[str, IssuerDocument[SupportDocument]]) -> None:
        self._trusted: dict[str, list[tuple[str, UserIssuer]]] = {}
        for application, issuer in trusted:
            self._trusted.setdefault(issuer.issuer, []).append((application, issuer))
        self._verifier = _Verifier(supportdocs=_Trusted(self._trusted, documents))

    async def read(self, credential: str, now: float) -> Identity:
        return await in_thread(partial(self._check, credential, now))

    def _check(self, credential: str, now: float) -> Identity:
        if len(credential) > MAX_ASSERTION_LENGTH:
            raise InvalidAssertion(f"The assertion is longer than {MAX_ASSERTION_LENGTH} characters.")
        try:
            certificate, assertion = map(_read_payload, credential.split("~"))
            name = _read_user(certificate["principal"]["email"])
            read_key(certificate["public-key"])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise InvalidAssertion("This is not an assertion with one certificate for a mail address.") from error
        trusted = self._find_trusting(certificate.get("iss"), assertion.get("aud"), name)
        leeway = min(issuer.leeway for _, issuer in trusted)
        expires = min(_check_times(claims, now, leeway) for claims in (certificate, assertion))
        self._verify(credential, assertion["aud"], now - leeway)
        return identity_of([User(application, issuer, name) for application, issuer in trusted], expires)

    def _find_trusting(self, name: object, audience: object, user: str) -> Trusted:
        trusted = self._trusted.get(name) if isinstance(name, str) else None
        if trusted is None:
            raise InvalidAssertion("The assertion's issuer is not trusted here.")
        trusted = [pair for pair in trusted if audience in pair[1].audiences]
        if not trusted:
            raise InvalidAssertion("The assertion is for another audience.")
        matching = [pair for pair in trusted if user.rpartition("@")[2] in _mail_domains(pair[1])]
        if not matching:
            raise InvalidAssertion("The assertion's issuer is not trusted with this mail address.")
        return matching

    def _verify(self, credential: str, audience: str, now: float) -> None:
        try:
            self._verifier.verify(credential, audience, now=int(now * 1000))
        except IssuerUnavailable:
            raise
        except ExpiredSignatureError as error:
            raise InvalidAssertion("The assertion has expired.") from error
        except Exception as error:  # parsing in PyBrowserID raises errors of any kind
            raise InvalidAssertion("The assertion's signatures are not valid.") from error


def _read_payload(token: str) -> dict[str, Any]:
    """Decodes the payload of a token without checking its signature, only that its algorithm is known."""
    header, payload, _ = token.split(".")
    if read_part(header).get("alg") not in _ALGORITHMS:
        raise ValueError("It is not signed with an algorithm of BrowserID.")
    return read_part(payload)


def _read_user(mail: object) -> str:
    name = f"bid:{mail}"
    if not isinstance(mail, str) or parse_principal(name).name != name:
        raise ValueError("It is not just a mail address.")
    return name


def _mail_domains(issuer: UserIssuer) -> tuple[str, ...]:
    return issuer.domains or (issuer.issuer,)


def _check_times(claims: Mapping[str, Any], now: float, leeway: float) -> float:
    """Checks the times of a certificate or an assertion, in milliseconds; returns its expiry + leeway in seconds."""
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    if "exp" not in times or not all(is_time(value, 1000) for value in times.values()):
        raise InvalidAssertion("The assertion has no expiry, or its times are not in milliseconds since 1970.")
    if times["exp"] / 1000 + leeway <= now:
        raise InvalidAssertion("The assertion has expired.")
    if max(times.get("nbf", 0), times.get("iat", 0)) / 1000 > now + leeway:
        raise InvalidAssertion("The assertion is not valid yet.")
    return float(times["exp"] / 1000 + leeway)
