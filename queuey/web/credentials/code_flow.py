"""Logins of users at an OpenID provider: the authorization code flow with PKCE (OpenID Connect Core, RFC 7636, 9700).

The browser goes to the provider with a ``state``, a ``nonce`` and the challenge of a verifier, and comes back with a
code. The service exchanges the code for an ID token, which is checked as every token is. Nothing is kept on the way:
all three are made of a secret that only this browser has, in its cookie.

oauthlib writes the requests and reads the answer of the browser. The provider is asked as for its keys, within bounds
of time and size. See docs/decisions/0042.
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

from queuey.errors import InvalidToken, IssuerUnavailable
from queuey.service.operating.credentials import UserLogin
from queuey.settings import UserIssuer, is_loopback, is_safe_url
from queuey.user_queues import issuer_tag
from queuey.web.credentials.bearer import Bearer
from queuey.web.credentials.key_sets import FETCH_TIMEOUT, RETRY_INTERVAL, Published, fetch, reason_of
from queuey.web.credentials.strict_json import read_object

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 2
"""Max exchanges with one provider under way in a process. Each holds a thread."""
DISCOVERY = "/.well-known/openid-configuration"
_PUBLIC_ERRORS = frozenset(
    {"access_denied", "login_required", "interaction_required", "account_selection_required", "consent_required"}
)
"""Answers by which a provider says that the user has not logged in; all others are faults of the configuration."""


class Discovered(NamedTuple):
    """Addresses of a provider.

    Attributes:
        authorization: Where the browser goes.
        token: Where codes are exchanged.
        names_itself: Each answer by the browser says which provider has made it (RFC 9207).
    """

    authorization: str
    token: str
    names_itself: bool


def read_discovery(issuer: str, content: bytes) -> Discovered:
    """Reads a provider's discovery document.

    Raises:
        ValueError: It is of another issuer, or names no addresses that are safe to use.
    """
    found = read_object(content)
    if found.get("issuer") != issuer:
        raise ValueError("it is of another issuer")
    # A provider elsewhere has no business with what listens on this machine alone.
    local = _is_local(issuer)
    for name in ("authorization_endpoint", "token_endpoint"):
        url = found.get(name)
        if not isinstance(url, str) or not is_safe_url(url) or (_is_local(url) and not local):
            raise ValueError(f"its {name} is not an address of another machine that begins with https://")
    names_itself = found.get("authorization_response_iss_parameter_supported") is True
    return Discovered(found["authorization_endpoint"], found["token_endpoint"], names_itself)


def _is_local(url: str) -> bool:
    """Returns whether an address is one of this machine, however that is written; a name is not looked up."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    with suppress(OSError):
        host = str(getaddrinfo(host, None, flags=AI_NUMERICHOST)[0][4][0])  # 127.1 and 0x7f.1 are 127.0.0.1, too.
    host = host.removeprefix("::ffff:")
    return is_loopback(host) or host in {"0.0.0.0", "::"} or host.endswith(".localhost")  # noqa: S104 - refused


class Attempt(NamedTuple):
    """A login under way.

    Attributes:
        state: Comes back with the browser.
        nonce: Stands in the ID token.
        verifier: Proves that the code was asked for here; only its hash passes through the browser.
        following: The page to go on to.
    """

    state: str
    nonce: str
    verifier: str
    following: str


class Provider:
    """An issuer at which users log in. Used by many threads.

    Args:
        issuer: The setting of one of the applications that trust it, with ``client``.
        secret: Of the client; None: it is public.
        bearer: Checks tokens.
        fetch_seconds: For all of an answer.
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
        self._fetch_seconds = fetch_seconds
        self._busy = threading.BoundedSemaphore(MAX_AT_ONCE)
        place = issuer.issuer.rstrip("/") + DISCOVERY
        self.discovery = Published(
            issuer.issuer, place, lambda content: read_discovery(issuer.issuer, content), what="discovery document"
        )

    def begin(self, visitor: str, following: str) -> Attempt:
        """Begins a login.

        Args:
            visitor: What only this browser knows.
            following: The page to go on to after it.
        """
        return self._attempt(visitor, secrets.token_urlsafe(16), following)

    def resume(self, visitor: str, state: str) -> Attempt | None:
        """Returns the login with a state; None: this browser has begun no such login at this provider."""
        salt, _, page = state.partition(".")[0].partition("~")
        try:
            following = urlsafe_b64decode(page + "=" * (-len(page) % 4)).decode()
        except ValueError:
            return None
        attempt = self._attempt(visitor, salt, following)
        return attempt if hmac.compare_digest(attempt.state.encode(), state.encode()) else None

    def _attempt(self, visitor: str, salt: str, following: str) -> Attempt:
        text = f"{salt}~{_text(following.encode())}"

        def derived(purpose: str) -> str:
            return _text(hmac.digest(visitor.encode(), f"{purpose} {self.issuer} {text}".encode(), "sha256"))

        return Attempt(f"{text}.{derived('state')}", derived("nonce"), derived("verifier"), following)

    def address(self, attempt: Attempt, back: str) -> str:
        """Returns where the browser goes to log in.

        Args:
            attempt: From :meth:`begin`.
            back: Where it comes back to, as the provider has it registered.

        Raises:
            IssuerUnavailable: The provider's discovery document is not there.
        """
        client = WebApplicationClient(self._client)
        scheme, rest = self.discovery.get().authorization.split("://", 1)
        # oauthlib knows nothing of providers on this machine; that this address is safe was checked.
        made: str = client.prepare_request_uri(
            f"https://{rest}",
            redirect_uri=back,
            scope=self._scope,
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=client.create_code_challenge(attempt.verifier, "S256"),
            code_challenge_method="S256",
        )
        return scheme + made.removeprefix("https")

    def finish(self, attempt: Attempt, answer: Mapping[str, str], back: str) -> UserLogin:
        """Exchanges the code that the browser came back with, and returns who has logged in; blocks.

        Args:
            attempt: Whose state the answer has.
            answer: Fields of the address that the browser came back to.
            back: That address.

        Raises:
            InvalidToken: The provider refuses, or what it says is not accepted.
            IssuerUnavailable: The provider cannot be asked now.
        """
        code = self._code(attempt, answer)
        if not self._busy.acquire(blocking=False):
            raise IssuerUnavailable("Too many users log in at this provider at the same moment.", retry_after=1)
        try:
            token = self._exchange(code, attempt, back)
        finally:
            self._busy.release()
        try:
            claims, users, _ = self._bearer.check(token, time.time())
        except InvalidToken as error:
            self._refuse(f"its ID token is refused: {str(error).rstrip('.')}")
        self._check(claims, attempt)
        return UserLogin(self.issuer, tuple((user.application, user.name, user.roles) for user in users))

    def _code(self, attempt: Attempt, answer: Mapping[str, str]) -> str:
        names = answer.get("iss")
        if names != self.issuer and (names is not None or self.discovery.get().names_itself):
            self._refuse("the answer is of another provider")
        try:
            # As for address: the scheme says nothing here.
            found = WebApplicationClient(self._client).parse_request_uri_response(
                f"https://localhost/?{urlencode(answer)}", attempt.state
            )
        except OAuth2Error as error:
            why = answer.get("error", "")
            if why in _PUBLIC_ERRORS:
                raise InvalidToken(f"You have not logged in at {self.host}: {why.replace('_', ' ')}.") from error
            self._refuse(f"it answers with the error {why[:80]!r}" if why else "it answers without a code")
        code: str = found["code"]
        return code

    def _exchange(self, code: str, attempt: Attempt, back: str) -> str:
        """Exchanges a code for an ID token."""
        client = WebApplicationClient(self._client)
        form = client.prepare_request_body(
            code=code, redirect_uri=back, code_verifier=attempt.verifier, include_client_id=self._secret is None
        )
        headers = {} if self._secret is None else {"Authorization": _basic(self._client, self._secret)}
        endpoint = self.discovery.get().token
        try:
            status, content = fetch(endpoint, self._fetch_seconds, form, headers)
        except Exception as error:  # whatever the HTTP client raises
            logger.warning("Codes cannot be exchanged with %s: %s.", self.issuer, reason_of(error))
            text = f"{self.host} does not answer as it should. Log in again, or with a key."
            raise IssuerUnavailable(text, retry_after=round(RETRY_INTERVAL)) from error
        try:
            found: Mapping[str, Any] = read_object(content)
        except (ValueError, RecursionError):
            found = {}
        token = found.get("id_token")
        if status != 200 or not isinstance(token, str):  # noqa: PLR2004 - OK
            self._refuse(f"the answer to the code is {status} with the error {str(found.get('error'))[:80]!r}")
        return token

    def _check(self, claims: Mapping[str, Any], attempt: Attempt) -> None:
        """Checks the claims that only ID tokens have."""
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


def _text(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _basic(client: str, secret: str) -> str:
    """Returns the client's Authorization header; each part is percent-encoded (RFC 6749, 2.3.1)."""
    return "Basic " + b64encode(f"{quote_plus(client)}:{quote_plus(secret)}".encode()).decode()
