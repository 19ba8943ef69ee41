"""Invalid tokens: what is wrong with each, how it is made, and what the refusal says.

Each is made when it is needed, as they are short-lived.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.access.users.issuer import Issuer, encode_part, known_key, remove_signature, sign_with_secret

FORM, TYPE, ALGORITHM = "is not a signed JWT", "is of another type", "is not signed with an algorithm"
HEADER, ISSUER, AUDIENCE = "a field that is not supported", "issuer is not trusted", "is for another audience"
TIMES, EXPIRED, EARLY = "does not say when it ends", "has expired", "is not valid yet"
USER, KEY, SIGNATURE = "names no user", "with a key that its issuer does not have", "signature is not valid"

STRANGER = "https://evil.example.org"


def _public(form: PublicFormat, encoding: Encoding) -> Callable[[Issuer], str]:
    def make(issuer: Issuer) -> str:
        return sign_with_secret(issuer.token(), issuer.keys["first"][1].public_key().public_bytes(encoding, form))

    return make


def _sign_with_another_issuers_key(issuer: Issuer) -> str:
    other = Issuer(issuer.name)
    other.keys = {"first": ("ES256", known_key("ES256", 1))}
    return other.token()


def _change_user(issuer: Issuer) -> str:
    header, _, signature = issuer.token().split(".")
    return f"{header}.{encode_part(issuer.claims('bob'))}.{signature}"


def _repeat_subject(issuer: Issuer) -> str:
    return issuer.sign((json.dumps(issuer.claims("ann"))[:-1] + ', "sub": "bob"}').encode())


def _repeat_algorithm(issuer: Issuer) -> str:
    header = b'{"alg": "ES256", "alg": "ES256", "kid": "first"}'
    return issuer.sign_text(f"{encode_part(header)}.{encode_part(issuer.claims('ann'))}")


def _in(seconds: float) -> int:
    return int(time.time() + seconds)


def _deep(depth: int) -> Callable[[Issuer], str]:
    def make(issuer: Issuer) -> str:
        payload = json.dumps(issuer.claims("ann"))
        return issuer.sign((payload[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}").encode())

    return make


def _raw(text: str) -> Callable[[Issuer], str]:
    return lambda issuer: text


def _payload(content: bytes) -> Callable[[Issuer], str]:
    return lambda issuer: issuer.sign(content)


ATTACKS: Mapping[str, tuple[Callable[[Issuer], str], str]] = {
    "no token": (_raw("x"), FORM),
    "another character": (lambda issuer: issuer.token().replace(".", "!.", 1), FORM),
    "two parts": (lambda issuer: issuer.token().rpartition(".")[0], FORM),
    "five parts, as an encrypted token": (lambda issuer: issuer.token() + ".x.y", FORM),
    "too long": (lambda issuer: issuer.token(x="y" * 9000), "is longer than"),
    "no object": (_payload(b"[1]"), FORM),
    "deeper than the interpreter": (_deep(2900), FORM),
    "a claim twice": (_repeat_subject, FORM),
    "a header field twice": (_repeat_algorithm, FORM),
    "no number": (_payload(b'{"exp": NaN}'), FORM),
    "unsigned": (lambda issuer: remove_signature(issuer.token(), {"alg": "none"}), ALGORITHM),
    "algorithm that is no text": (lambda issuer: issuer.token(headers={"alg": ["ES256"]}), ALGORITHM),
    "signature taken away": (lambda issuer: issuer.token().rpartition(".")[0] + ".", SIGNATURE),
    "public key as a secret, PEM": (_public(PublicFormat.SubjectPublicKeyInfo, Encoding.PEM), ALGORITHM),
    "algorithm of another kind of key": (lambda issuer: issuer.token(headers={"alg": "RS256"}), KEY),
    "of another key": (_sign_with_another_issuers_key, SIGNATURE),
    "changed after it was signed": (_change_user, SIGNATURE),
    "unknown key": (lambda issuer: issuer.token(headers={"kid": "other"}), KEY),
    "key brought along": (
        lambda issuer: _sign_with_another_issuers_key(issuer).replace(
            encode_part({"typ": "JWT", "alg": "ES256", "kid": "first"}),
            encode_part({"typ": "JWT", "alg": "ES256", "jwk": issuer.jwk("first"), "jku": "http://127.0.0.1:1/"}),
        ),
        SIGNATURE,
    ),
    "critical extension": (lambda issuer: issuer.token(headers={"crit": ["exp"]}), HEADER),
    "token in a token": (lambda issuer: issuer.token(headers={"cty": "JWT"}), HEADER),
    "logout token": (lambda issuer: issuer.token(headers={"typ": "logout+jwt"}), TYPE),
    "another issuer": (lambda issuer: issuer.token(iss=STRANGER), ISSUER),
    "no issuer": (lambda issuer: issuer.token(iss=None), ISSUER),
    "another audience": (lambda issuer: issuer.token(aud="billing"), AUDIENCE),
    "audiences without this one": (lambda issuer: issuer.token(aud=["billing", "mail"]), AUDIENCE),
    "expired": (lambda issuer: issuer.token(exp=_in(-120)), EXPIRED),
    "no end": (lambda issuer: issuer.token(exp=None), TIMES),
    "end that is a text": (lambda issuer: issuer.token(exp=str(_in(600))), TIMES),
    "end beyond numbers": (
        lambda issuer: issuer.sign(json.dumps(issuer.claims("ann", exp="E")).replace('"E"', "1e999").encode()),
        TIMES,
    ),
    "more digits than are read": (
        lambda issuer: issuer.sign(json.dumps(issuer.claims("ann", exp="E")).replace('"E"', "9" * 4400).encode()),
        FORM,
    ),
    "not valid yet": (lambda issuer: issuer.token(nbf=_in(120)), EARLY),
    "issued in the future": (lambda issuer: issuer.token(iat=_in(120)), EARLY),
    "no user": (lambda issuer: issuer.token(None), USER),
    "user that is a number": (lambda issuer: issuer.token(1), USER),
    "user that is too long": (lambda issuer: issuer.token("x" * 256), USER),
    "user with half a character": (lambda issuer: issuer.token("ann\ud800"), USER),
}
"""What is wrong: the token, by an issuer whose only published key is ``first``, and words of the refusal."""
