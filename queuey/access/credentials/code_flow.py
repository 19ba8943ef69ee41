"""Logins of users at an OpenID provider: the authorization code flow with PKCE (OpenID Connect Core, RFC 7636, 9700).

The browser goes to the provider with a ``state``, a ``nonce`` and the challenge of a verifier, and comes back with a
code. The service exchanges the code for an ID token, which is checked as every token is. It stores nothing about a
login under way: all three values are derived from a secret that only this browser has, in its cookie.

oauthlib builds the requests and parses the browser's response. Requests to the provider have the same bounds of time
and size as those for its keys. See docs/decisions/0042.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from contextlib import suppress
from socket import AI_NUMERICHOST, getaddrinfo
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote_plus, urlencode, urlsplit

from oauthlib.oauth2 import OAuth2Error, WebApplicationClient

from queuey.access.credentials.bearer import Bearer
from queuey.access.credentials.key_sets import FETCH_TIMEOUT, RETRY_INTERVAL, IssuerDocument, fetch, short_reason
from queuey.access.credentials.strict_json import read_object
from queuey.access.issued_credentials import UserLogin
from queuey.model.errors import InvalidToken, IssuerUnavailable
from queuey.model.user_queues import issuer_tag
from queuey.settings import UserIssuer, is_loopback, is_safe_url

logger = logging.getLogger(__name__)

MAX_EXCHANGES = 2
"""Max exchanges with one provider under way in a process. Each holds a thread."""
DISCOVERY_PATH = "/.well-known/openid-configuration"
_PUBLIC_ERRORS = frozenset(
    {"access_denied", "login_required", "interaction_required", "account_selection_required", "consent_required"}
)
"""Errors by which a provider reports that the user has not logged in; all others are faults of the configuration."""


class ProviderEndpoints(NamedTuple):
    """Endpoints of a provider.

    Attributes:
        authorization: URL to which the browser goes.
        token: URL at which codes are exchanged.
        sends_issuer: Each response through the browser names the provider that has made it (RFC 9207).
    """

    authorization: str
    token: str
    sends_issuer: bool


def read_discovery(issuer: str, content: bytes) -> ProviderEndpoints:
    """Reads a provider's discovery document.

    Raises:
        ValueError: It is of another issuer, or its endpoints are missing, are not safe (see :func:`is_safe_url`), or
            are on this machine although the issuer is not.
    """
    document = read_object(content)
    if document.get("issuer") != issuer:
        raise ValueError("it is of another issuer")
    # A remote provider must not make this machine send requests to itself.
    local = _is_local(issuer)
    for name in ("authorization_endpoint", "token_endpoint"):
        url = document.get(name)
        if not isinstance(url, str) or not is_safe_url(url) or (_is_local(url) and not local):
            raise ValueError(f"its {name} is not an address of another machine that begins with https://")
    sends_issuer = document.get("authorization_response_iss_parameter_supported") is True
    return ProviderEndpoints(document["authorization_endpoint"], document["token_endpoint"], sends_issuer)


def _is_local(url: str) -> bool:
    """Returns whether a URL is of this machine, in any notation of its address; names are not resolved."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    with suppress(OSError):
        host = str(getaddrinfo(host, None, flags=AI_NUMERICHOST)[0][4][0])  # 127.1 and 0x7f.1 are 127.0.0.1, too.
    host = host.removeprefix("::ffff:")
    return is_loopback(host) or host in {"0.0.0.0", "::"} or host.endswith(".localhost")  # noqa: S104 - refused


class LoginAttempt(NamedTuple):
    """A login under way.

    Attributes:
        state: Returned by the provider through the browser.
        nonce: A claim of the ID token.
        verifier: Proves that this service has started the login; only its hash passes through the browser.
        return_to: The page to go to after the login.
    """

    state: str
    nonce: str
    verifier: str
    return_to: str


class Provider:
    """An issuer at which users log in. Thread-safe.

    Args:
        issuer: The setting of an application that trusts the issuer, with ``client``.
        secret: The client's secret, or None for a public client.
        fetch_seconds: Timeout for a whole response.
    """

    def __init__(
        self, issuer: UserIssuer, secret: str | None, bearer: Bearer, *, fetch_seconds: float = FETCH_TIMEOUT
    ) -> None:
        self.issuer = issuer.issuer
        self.tag = issuer_tag(issuer.issuer)
        self.host = urlsplit(issuer.issuer).netloc
        self._client = issuer.client or ""
        self._scope = issuer.scope
        self._secret = secret
        self._bearer = bearer
        self.fetch_seconds = fetch_seconds
        self._busy = threading.BoundedSemaphore(MAX_EXCHANGES)
        place = issuer.issuer.rstrip("/") + DISCOVERY_PATH
        self.discovery = IssuerDocument(
            issuer.issuer, place, lambda content: read_discovery(issuer.issuer, content), what="discovery document"
        )

    def begin(self, visitor: str, return_to: str) -> LoginAttempt:
        return self._make_attempt(visitor, secrets.token_urlsafe(16), return_to)

    def resume(self, visitor: str, state: str) -> LoginAttempt | None:
        salt, _, page = state.partition(".")[0].partition("~")
        try:
            return_to = urlsafe_b64decode(page + "=" * (-len(page) % 4)).decode()
        except ValueError:
            return None
        attempt = self._make_attempt(visitor, salt, return_to)
        return attempt if hmac.compare_digest(attempt.state.encode(), state.encode()) else None

    def _make_attempt(self, visitor: str, salt: str, return_to: str) -> LoginAttempt:
        text = f"{salt}~{_encode_base64url(return_to.encode())}"

        def derived(purpose: str) -> str:
            return _encode_base64url(
                hmac.digest(visitor.encode(), f"{purpose} {self.issuer} {text}".encode(), "sha256")
            )

        return LoginAttempt(f"{text}.{derived('state')}", derived("nonce"), derived("verifier"), return_to)

    def make_login_url(self, attempt: LoginAttempt, redirect_uri: str) -> str:
        """Returns the URL at which the browser logs in.

        Args:
            redirect_uri: The redirect URI, as registered at the provider.

        Raises:
            IssuerUnavailable: The provider's discovery document cannot be loaded now.
        """
        client = WebApplicationClient(self._client)
        scheme, rest = self.discovery.get().authorization.split("://", 1)
        # oauthlib accepts only https. The discovery has checked that this address is safe.
        uri: str = client.prepare_request_uri(
            f"https://{rest}",
            redirect_uri=redirect_uri,
            scope=self._scope,
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=client.create_code_challenge(attempt.verifier, "S256"),
            code_challenge_method="S256",
        )
        return scheme + uri.removeprefix("https")

    def finish(self, attempt: LoginAttempt, answer: Mapping[str, str], redirect_uri: str) -> UserLogin:
        """Exchanges the code that the browser came back with, and returns the user who has logged in; blocks.

        Args:
            answer: Query fields with which the browser came back.

        Raises:
            InvalidToken: The provider refuses the login, or its token is not accepted.
            IssuerUnavailable: The provider cannot be reached now, or too many users log in at it at the same moment.
        """
        code = self._read_code(attempt, answer)
        if not self._busy.acquire(blocking=False):
            raise IssuerUnavailable("Too many users log in at this provider at the same moment.", retry_after=1)
        try:
            token = self._exchange(code, attempt, redirect_uri)
        finally:
            self._busy.release()
        try:
            claims, users, _ = self._bearer.check(token, time.time())
        except InvalidToken as error:
            self._refuse(f"its ID token is refused: {str(error).rstrip('.')}")
        self._check_claims(claims, attempt)
        return UserLogin(self.issuer, tuple((user.application, user.name, user.roles) for user in users))

    def _read_code(self, attempt: LoginAttempt, answer: Mapping[str, str]) -> str:
        """Returns the code in the browser's answer.

        Refuses an answer of another provider, of another login, or with an error; also one that does not name its
        provider, if the provider always does.
        """
        claimed_issuer = answer.get("iss")
        if claimed_issuer != self.issuer and (claimed_issuer is not None or self.discovery.get().sends_issuer):
            self._refuse("the answer is of another provider")
        try:
            # As in make_login_url: oauthlib accepts only https.
            parameters = WebApplicationClient(self._client).parse_request_uri_response(
                f"https://localhost/?{urlencode(answer)}", attempt.state
            )
        except OAuth2Error as error:
            why = answer.get("error", "")
            if why in _PUBLIC_ERRORS:
                raise InvalidToken(f"You have not logged in at {self.host}: {why.replace('_', ' ')}.") from error
            self._refuse(f"it answers with the error {why[:80]!r}" if why else "it answers without a code")
        code: str = parameters["code"]
        return code

    def _exchange(self, code: str, attempt: LoginAttempt, redirect_uri: str) -> str:
        """Exchanges a code at the provider for an ID token, which is not checked yet; blocks.

        Raises:
            InvalidToken: The provider refuses the code, or answers without a token.
            IssuerUnavailable: The provider sent no valid response.
        """
        client = WebApplicationClient(self._client)
        form = client.prepare_request_body(
            code=code, redirect_uri=redirect_uri, code_verifier=attempt.verifier, include_client_id=self._secret is None
        )
        headers = {} if self._secret is None else {"Authorization": _make_basic_header(self._client, self._secret)}
        endpoint = self.discovery.get().token
        try:
            status, content = fetch(endpoint, self.fetch_seconds, form, headers)
        except Exception as error:  # whatever the HTTP client raises
            logger.warning("Codes cannot be exchanged with %s: %s.", self.issuer, short_reason(error))
            text = f"{self.host} did not send a valid response. Log in again, or with a key."
            raise IssuerUnavailable(text, retry_after=round(RETRY_INTERVAL)) from error
        try:
            fields: Mapping[str, Any] = read_object(content)
        except (ValueError, RecursionError):
            fields = {}
        token = fields.get("id_token")
        if status != 200 or not isinstance(token, str):  # noqa: PLR2004 - OK
            self._refuse(f"the answer to the code is {status} with the error {str(fields.get('error'))[:80]!r}")
        return token

    def _check_claims(self, claims: Mapping[str, Any], attempt: LoginAttempt) -> None:
        audience = claims["aud"]
        if claims["iss"] != self.issuer:
            self._refuse("the token is of another issuer")
        if self._client not in ([audience] if isinstance(audience, str) else audience):
            self._refuse("the token is for another client")
        if claims.get("azp", self._client) != self._client:
            self._refuse("the token was made for another client")
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode("utf-8", "replace"), attempt.nonce.encode()
        ):
            self._refuse("the token is of another login")

    def _refuse(self, why: str) -> NoReturn:
        logger.warning("A login at %s is refused: %s.", self.issuer, why)
        raise InvalidToken(f"The login at {self.host} has failed: {why}. Log in again.")


def _encode_base64url(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _make_basic_header(client: str, secret: str) -> str:
    return "Basic " + b64encode(f"{quote_plus(client)}:{quote_plus(secret)}".encode()).decode()
