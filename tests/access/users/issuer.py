"""An issuer of tokens for tests: its keys, its tokens, and a server of its keys on loopback that can fail on purpose.

Tokens are made when a test runs: tokens made at collection would have expired when a long
run reaches their test.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from queuey.access.credentials.bearer import Bearer
from queuey.access.credentials.readers import CredentialReader
from queuey.access.credentials.users import make_readers
from queuey.settings import Users

AUDIENCE = "queuey"
Kind = Literal["ES256", "ES384", "RS256", "PS256", "EdDSA"]
Behaviour = Literal["serve", "hang", "grow", "drip", "redirect", "fail", "compress"]


def new_key(kind: Kind) -> Any:  # noqa: ANN401 - one of several kinds
    if kind in {"RS256", "PS256"}:
        return rsa.generate_private_key(65537, 2048)
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1() if kind == "ES256" else ec.SECP384R1())


@cache
def known_key(kind: Kind, number: int = 0) -> Any:  # noqa: ANN401 - one of several kinds
    """Returns a cached private key: generating one takes a while."""
    return new_key(kind)


def encode_part(content: object) -> str:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class Issuer:
    """Has keys and issues tokens.

    Args:
        name: Its ``iss``.
        kind: Kind of its first key.
    """

    def __init__(self, name: str = "https://accounts.example.org", kind: Kind = "ES256") -> None:
        self.name = name
        self.keys: dict[str, tuple[Kind, Any]] = {"first": (kind, known_key(kind))}
        self.further: list[dict[str, Any]] = []
        """Keys to publish in addition to its own, as JSON Web Keys."""

    def rotate(self, name: str, kind: Kind = "ES256") -> None:
        """Signs with a new key from now on, and publishes only that one."""
        self.keys = {name: (kind, new_key(kind))}

    def make_key_set(self) -> bytes:
        own = [self.jwk(name) for name in self.keys]
        return json.dumps({"keys": [*own, *self.further]}).encode()

    def jwk(self, name: str) -> dict[str, Any]:
        kind, key = self.keys[name]
        public = get_default_algorithms()[kind].to_jwk(key.public_key(), as_dict=True)
        return {**public, "kid": name, "use": "sig", "alg": kind}

    def claims(self, user: object, **claims: object) -> dict[str, Any]:
        """Returns the claims of a token for a user; a claim that is None is left out."""
        now = int(time.time())
        usual = {"iss": self.name, "aud": AUDIENCE, "sub": user, "iat": now, "nbf": now, "exp": now + 600}
        return {name: value for name, value in {**usual, **claims}.items() if value is not None}

    def token(
        self, user: object = "ann", *, key: str | None = None, headers: dict[str, Any] | None = None, **claims: object
    ) -> str:
        """Returns a token.

        Args:
            user: Its ``sub``.
            key: Index of the signing key; by default the last.
            headers: Headers besides ``alg`` and ``kid``, or replacing them.
            claims: Claims besides the usual ones, or replacing them.
        """
        return self.sign(json.dumps(self.claims(user, **claims)).encode(), key=key, headers=headers)

    def sign(self, payload: bytes, *, key: str | None = None, headers: dict[str, Any] | None = None) -> str:
        """Returns signed headers and claims of any kind, with the newest key by default and without headers of None."""
        name = key or list(self.keys)[-1]
        kind, _ = self.keys[name]
        header = {"typ": "JWT", "alg": kind, "kid": name, **(headers or {})}
        header = {field: value for field, value in header.items() if value is not None}
        return self.sign_text(f"{encode_part(header)}.{encode_part(payload)}", name)

    def sign_text(self, text: str, name: str = "first") -> str:
        kind, private = self.keys[name]
        signature = get_default_algorithms()[kind].sign(text.encode(), private)
        return f"{text}.{encode_part(signature)}"


class KeyServer:
    """Serves what an issuer publishes, at ``url``.

    Attributes:
        content: Content that it serves.
        behaviour: How it serves the content.
        asked: Number of requests.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.behaviour: Behaviour = "serve"
        self.asked = 0
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                with contextlib.suppress(OSError):
                    outer.answer(self)

            do_POST = do_GET  # noqa: N815 - http.server has it so

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.root = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.root}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers as ``behaviour`` says; ``hang``, ``grow`` and ``drip`` go on until the server is closed."""
        if self.behaviour == "hang":
            self.closing.wait(600)
            return
        handler.send_response({"redirect": 302, "fail": 500}.get(self.behaviour, 200))
        if self.behaviour == "redirect":
            handler.send_header("Location", self.url + "/elsewhere")
        if self.behaviour == "compress":
            handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Type", "application/json")
        handler.end_headers()
        if self.behaviour == "grow":
            while not self.closing.is_set():
                handler.wfile.write(b" " * 65536)
        elif self.behaviour == "drip":
            while not self.closing.wait(0.05):
                handler.wfile.write(b" ")
        else:
            handler.wfile.write(self.content)

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


@contextlib.contextmanager
def serving(content: bytes) -> Iterator[KeyServer]:
    server = KeyServer(content)
    try:
        yield server
    finally:
        server.close()


def patient_readers(users: Users) -> list[CredentialReader]:
    """Returns readers of users' credentials that wait for keys as long as a busy machine may take to serve them."""
    readers = make_readers(users, prefetch=False)
    for reader in readers:
        assert isinstance(reader, Bearer)
        for keys in reader._keys.values():
            keys.wait_seconds = keys.fetch_seconds = 60.0
    return readers


def remove_signature(token: str, header: dict[str, Any]) -> str:
    return f"{encode_part(header)}.{token.split('.')[1]}."


def sign_with_secret(token: str, secret: bytes, algorithm: str = "HS256") -> str:
    claims = jwt.decode(token, options={"verify_signature": False})
    text = f"{encode_part({'typ': 'JWT', 'alg': algorithm, 'kid': 'first'})}.{encode_part(claims)}"
    signature = get_default_algorithms()[algorithm].sign(text.encode(), secret)
    return f"{text}.{encode_part(signature)}"
