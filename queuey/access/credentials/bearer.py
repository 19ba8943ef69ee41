"""Reads users' tokens: ``Bearer TOKEN``, a JWT that an OpenID provider has signed (RFC 7519, RFC 8725).

PyJWT checks the signature. The claims are checked here, and before the signature, because that costs less. A token
decides nothing about its own verification: the trusted issuers, where their keys are, and the algorithms of each kind
of key are configured. See docs/decisions/libraries.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jwt

from queuey.access.credentials.key_sets import IssuerDocument
from queuey.access.credentials.readers import Identity
from queuey.access.credentials.strict_json import read_object, read_part
from queuey.access.credentials.user_identity import Trusted, User, identity_of, is_time
from queuey.model.errors import InvalidToken
from queuey.model.user_queues import MAX_USER_NAME, user_name
from queuey.settings import UserIssuer
from queuey.storage.deadlines import in_thread

MAX_TOKEN = 8192
MAX_KEYS = 64
RSA_BITS = range(2048, 8193)
_MAX_EXPONENT = 1 << 33
_TOKEN_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Accepted types of tokens. Logout tokens and others signed by the same keys are refused."""
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): _RSA_ALGORITHMS,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Algorithms by kind of key (``kty``, ``crv``). Keys of other kinds, such as symmetric ones, are skipped."""
_KNOWN_ALGORITHMS = frozenset(algorithm for algorithms in _ALGORITHMS.values() for algorithm in algorithms)
_SIGNATURES = jwt.PyJWS(sorted(_KNOWN_ALGORITHMS))
_PUBLIC_KEY_FIELDS = ("kty", "crv", "n", "e", "x", "y")


class KeySet:
    """The keys of an issuer, by id and algorithm. If two keys have the same id and algorithm, the first one counts.

    Args:
        content: A JSON Web Key Set (RFC 7517).

    Raises:
        ValueError: It is not a key set, has too many keys, or has no usable key.
    """

    def __init__(self, content: bytes) -> None:
        keys = read_object(content).get("keys")
        if not isinstance(keys, list) or len(keys) > MAX_KEYS:
            raise ValueError(f"it has no list of at most {MAX_KEYS} keys")
        self._keys: dict[tuple[str | None, str], jwt.PyJWK] = {}
        self._by_algorithm: dict[str, list[jwt.PyJWK]] = {}
        for key in keys:
            self._add(key)
        if not self._keys:
            raise ValueError("it has no key that can be used")

    def _add(self, fields: Any) -> None:  # noqa: ANN401 - whatever JSON has
        for algorithm in _find_algorithms(fields):
            try:
                key = jwt.PyJWK({name: fields[name] for name in _PUBLIC_KEY_FIELDS if name in fields}, algorithm)
            except (jwt.PyJWTError, KeyError, TypeError, ValueError):
                continue
            if _is_strong(key.key) and (fields.get("kid"), algorithm) not in self._keys:
                self._keys[fields.get("kid"), algorithm] = key
                self._by_algorithm.setdefault(algorithm, []).append(key)

    def find(self, name: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Returns the key with this id and algorithm; without an id, the key of the algorithm if there is only one."""
        if name is not None:
            return self._keys.get((name, algorithm))
        keys = self._by_algorithm.get(algorithm, [])
        return keys[0] if len(keys) == 1 else None


def _find_algorithms(key: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever JSON has
    if not isinstance(key, dict) or "d" in key or key.get("use", "sig") != "sig":
        return ()
    operations = key.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return ()
    kind, curve, name = key.get("kty"), key.get("crv"), key.get("kid")
    if not isinstance(kind, str) or not isinstance(curve, str | None) or not isinstance(name, str | None):
        return ()
    fitting = _ALGORITHMS.get((kind, curve), ())
    return tuple(algorithm for algorithm in fitting if key.get("alg", algorithm) == algorithm)


def _is_strong(key: Any) -> bool:  # noqa: ANN401 - one of several kinds of keys of cryptography's
    numbers = key.public_numbers() if hasattr(key, "public_numbers") else None
    exponent = getattr(numbers, "e", None)
    return exponent is None or (key.key_size in RSA_BITS and exponent < _MAX_EXPONENT)


class Bearer:
    """Reads tokens of the issuers that applications trust, as a :class:`~.readers.CredentialReader`."""

    scheme = "Bearer"
    document = KeySet
    max_cache_seconds = 300.0
    """Max seconds for which a token is cached: as long as a key that its issuer has revoked may be."""

    def __init__(self, trusted: Trusted, keys: Mapping[str, IssuerDocument[KeySet]]) -> None:
        self._keys = keys
        self._trusted: dict[str, list[tuple[str, UserIssuer]]] = {}
        for application, issuer in trusted:
            self._trusted.setdefault(issuer.issuer, []).append((application, issuer))

    async def read(self, credential: str, now: float) -> Identity:
        """Returns the identity of a token."""
        _, users, expires = await in_thread(partial(self.check, credential, now))
        return identity_of(users, expires)

    def check(self, credential: str, now: float) -> tuple[Mapping[str, Any], Sequence[User], float]:
        """Checks a token; returns its claims, its users by application, and its expiry in seconds since 1970.

        Raises:
            InvalidToken: The token is not accepted.
            IssuerUnavailable: The issuer's keys cannot be loaded now.
        """
        if len(credential) > MAX_TOKEN:
            raise InvalidToken(f"The token is longer than {MAX_TOKEN} characters.")
        try:
            header_part, claims_part, _ = credential.split(".")
            header, claims = read_part(header_part), read_part(claims_part)
        except (ValueError, RecursionError) as error:
            raise InvalidToken("The token is not a signed JWT.") from error
        name, algorithm = _read_header(header)
        trusted = self._find_trusted(claims)
        users = [
            User(application, issuer, _read_user(issuer, claims), _read_roles(issuer, claims))
            for application, issuer in trusted
        ]
        expires = min(_check_times(claims, now, issuer.leeway) for _, issuer in trusted)
        self._verify(credential, trusted[0][1].issuer, name, algorithm)
        return claims, users, expires

    def _find_trusted(self, claims: Mapping[str, Any]) -> Trusted:
        name = claims.get("iss")
        trusted = self._trusted.get(name) if isinstance(name, str) else None
        if trusted is None:
            raise InvalidToken("The token's issuer is not trusted here.")
        audience = claims.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
        matching = [
            (application, issuer) for application, issuer in trusted if any(a in audiences for a in issuer.audiences)
        ]
        if not matching:
            raise InvalidToken("The token is for another audience.")
        return matching

    def _verify(self, token: str, issuer: str, name: str | None, algorithm: str) -> None:
        published = self._keys[issuer]
        keys = published.get()
        key = keys.find(name, algorithm) or published.get_newer_than(keys).find(name, algorithm)
        if key is None:
            raise InvalidToken("The token is signed with a key that its issuer does not have.")
        try:
            _SIGNATURES.decode_complete(token, key, [algorithm])
        except (jwt.PyJWTError, ValueError) as error:
            raise InvalidToken("The token's signature is not valid.") from error


def _read_header(header: Mapping[str, Any]) -> tuple[str | None, str]:
    kind, algorithm, name = header.get("typ", "jwt"), header.get("alg"), header.get("kid")
    if not isinstance(kind, str) or kind.lower() not in _TOKEN_TYPES:
        raise InvalidToken("The token is of another type than JWT.")
    if not isinstance(algorithm, str) or algorithm not in _KNOWN_ALGORITHMS:
        raise InvalidToken("The token is not signed with an algorithm that is accepted.")
    if not isinstance(name, str | None) or not header.keys().isdisjoint({"crit", "b64", "cty", "zip", "enc"}):
        raise InvalidToken("The token's header has a field that is not supported.")
    return name, algorithm


def _check_times(claims: Mapping[str, Any], now: float, leeway: float) -> float:
    """Returns a token's expiry, with leeway, in seconds since 1970; refuses one that has none or is not in force."""
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    if "exp" not in times or not all(is_time(value) for value in times.values()):
        raise InvalidToken("The token does not say when it ends, or its times are not seconds since 1970.")
    if times["exp"] + leeway <= now:
        raise InvalidToken("The token has expired.")
    if max(times.get("nbf", 0), times.get("iat", 0)) > now + leeway:
        raise InvalidToken("The token is not valid yet.")
    return float(times["exp"] + leeway)


def _read_user(issuer: UserIssuer, claims: Mapping[str, Any]) -> str:
    user = claims.get(issuer.user)
    try:
        return user_name(issuer.issuer, user if isinstance(user, str) else "")
    except ValueError as error:
        raise InvalidToken(
            f"The token's claim {issuer.user} is not a text of 1 to {MAX_USER_NAME} characters, so it names no user."
        ) from error


def _read_roles(issuer: UserIssuer, claims: Mapping[str, Any]) -> tuple[str, ...]:
    claim = claims.get(issuer.roles_claim)
    roles = claim if isinstance(claim, list) else [claim]
    return tuple(role for role in issuer.roles if role in roles)
