"""An OpenID provider for tests, on loopback: discovery, a login without a form, and codes for ID tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from queuey.access.credentials.code_flow import DISCOVERY_PATH, Provider
from queuey.access.credentials.readers import CredentialReader
from queuey.access.credentials.users import make_providers
from queuey.settings import Users
from tests.access.users.issuer import Issuer, KeyServer, patient_readers

Answer = tuple[int, dict[str, str], bytes]


class OpenIdProvider(KeyServer):
    """Logs in every visitor as one user. Serves its discovery document, keys, logins and tokens; else answers 404.

    Args:
        host: Host of its name; the address is loopback.
        client: The only registered client.
        secret: Secret of the client, or None if it has no secret.

    Attributes:
        user: The visitor, or None for one who cancels.
        asks: Show a page with a link first.
        claims: Claims of ID tokens, besides the usual ones or replacing them.
        headers: Headers of ID tokens, besides the usual ones or replacing them.
        discovery: The discovery document.
        answer_fields: Fields that the browser brings back, besides the usual ones or replacing them.
        troubled: The path at which it fails, as ``behaviour`` and ``content`` say.
        exchanged: Forms that were sent for codes.
    """

    def __init__(self, host: str = "127.0.0.1", client: str = "queuey", secret: str | None = None) -> None:
        super().__init__(b"{}")
        self.root = self.root.replace("127.0.0.1", host)
        self.url = f"{self.root}/keys"
        self.issuer = Issuer(self.root)
        self.user: str | None = "ann"
        self.asks = False
        self.claims: dict[str, Any] = {}
        self.headers: dict[str, Any] = {}
        self.answer_fields: dict[str, str | None] = {}
        self.troubled = ""
        self.exchanged: list[dict[str, str]] = []
        self.discovery: dict[str, Any] = {
            "issuer": self.root,
            "authorization_endpoint": f"{self.root}/authorize?theme=dark",
            "token_endpoint": f"{self.root}/token",
            "jwks_uri": self.url,
        }
        self._client, self._secret = client, secret
        self._codes: dict[str, dict[str, str]] = {}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        # Always read the body: closing a connection with unread bytes resets it, and the answer may be lost.
        form = handler.rfile.read(int(handler.headers.get("Content-Length", 0))).decode()
        if parts.path == self.troubled:
            super().answer(handler)
            return
        status, headers, content = self._answer(parts.path, dict(parse_qsl(parts.query)), form, handler)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    def _answer(self, path: str, query: dict[str, str], form: str, handler: BaseHTTPRequestHandler) -> Answer:
        if path == DISCOVERY_PATH:
            return 200, {}, json.dumps(self.discovery).encode()
        if path == "/keys":
            return 200, {}, self.issuer.make_key_set()
        if path == "/authorize":
            return self._authorize(query)
        if path == "/token" and handler.command == "POST":
            return self._token(dict(parse_qsl(form)), handler.headers.get("Authorization"))
        return 404, {}, b""

    def _authorize(self, query: dict[str, str]) -> Answer:
        usual = {"response_type": "code", "client_id": self._client, "code_challenge_method": "S256", "theme": "dark"}
        if not usual.items() <= query.items() or "openid" not in query["scope"].split():
            return 400, {}, b"bad request"
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        usual = {"code": code} if self.user is not None else {"error": "access_denied", "error_description": "no"}
        answer = {**usual, "state": query["state"], "session_state": "x", **self.answer_fields}
        fields = urlencode({name: value for name, value in answer.items() if value is not None})
        back = f"{query['redirect_uri']}?{fields}"
        if self.asks:
            return 200, {"Content-Type": "text/html"}, f'<a href="{escape(back)}">Go on as {self.user}</a>'.encode()
        return 302, {"Location": back}, b""

    def _token(self, form: dict[str, str], authorization: str | None) -> Answer:
        """Returns an ID token for a code, once; an error for another client, code, address or verifier."""
        self.exchanged.append(form)
        if not self._is_client(form, authorization):
            return _error("invalid_client", 401)
        login = self._codes.pop(form["code"], None)
        if login is None or form["grant_type"] != "authorization_code" or form["redirect_uri"] != login["redirect_uri"]:
            return _error("invalid_grant")
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if challenge != login["code_challenge"]:
            return _error("invalid_grant")
        claims = {"aud": self._client, "nonce": login.get("nonce"), **self.claims}
        token = self.issuer.token(self.user, headers=self.headers, **claims)
        return 200, {}, json.dumps({"access_token": "x", "token_type": "Bearer", "id_token": token}).encode()

    def _is_client(self, form: dict[str, str], authorization: str | None) -> bool:
        if self._secret is None:
            return authorization is None and form.get("client_id") == self._client
        expected = urlencode({self._client: self._secret}).replace("=", ":")
        return (
            "client_id" not in form and authorization is not None and b64decode(authorization[6:]) == expected.encode()
        )


def _error(code: str, status: int = 400) -> Answer:
    return status, {}, json.dumps({"error": code}).encode()


@contextlib.contextmanager
def providing(host: str = "127.0.0.1", client: str = "queuey", secret: str | None = None) -> Iterator[OpenIdProvider]:
    provider = OpenIdProvider(host, client, secret)
    try:
        yield provider
    finally:
        provider.close()


def read_redirect(address: str) -> str:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        assert answer.status == 302, answer.read()
        return answer.headers["Location"]
    finally:
        connection.close()


def patient_providers(users: Users, environ: dict[str, str]) -> tuple[list[CredentialReader], list[Provider]]:
    readers = patient_readers(users)
    providers = make_providers(users, readers, environ, prefetch=False)
    for provider in providers:
        provider.fetch_seconds = provider.discovery.wait_seconds = provider.discovery.fetch_seconds = 60.0
    return readers, providers
