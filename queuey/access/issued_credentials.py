"""Credentials that the service issues: keys that one caller makes for others, and browser sessions.

A key has fewer rights than the caller that makes it, and expires no later. A session is an entry in the store's ledger
under the hash of its token, so every process of the service accepts the token. The store has only hashes of tokens and
keys, so a copy of the store grants no access. See ``docs/decisions/0040-console-sessions.md``, and
``0042-console-login-by-provider.md`` for users.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from hashlib import sha256

import msgspec

from queuey.model.errors import InvalidRequest, KeyNotFound, NotAllowed, NotAuthenticated
from queuey.model.messages import OPERATORS, Key, Scope, is_readable
from queuey.model.rights import Caller, may_create_key
from queuey.storage import Applications, Entry, Store

SESSION_SECONDS = 8 * 3600
"""Max seconds of a session; the ledger keeps entries longer."""
TOKEN_BYTES = 32
LINK_SECONDS = 300
LINK_BYTES = 16
_ONLY_INDEX = 0
"""Index of a session's only entry in the ledger."""
MAX_KEY_SECONDS = 366 * 86_400
MAX_NOTE_LENGTH = 100


class Keys:
    """Lists, makes and revokes keys of applications."""

    def __init__(self, applications: Applications, clock: Callable[[], float] = time.time) -> None:
        self._applications = applications
        self._clock = clock

    async def list(self, application: str, caller: Caller) -> list[Key]:
        return [key for key in await self._applications.keys(application) if _is_fewer(key, caller)]

    def check(
        self, application: str, caller: Caller, scope: Scope, *, seconds: float, note: str, until: float | None
    ) -> float:
        """Checks that a caller may make a key for ``seconds``. Returns its expiry in seconds since 1970.

        ``until`` is the expiry of the caller's own key, or None if that key does not expire.

        Raises:
            NotAllowed: The key would not have fewer rights than the caller.
            InvalidRequest: The key would live too long, or the note is not valid.
        """
        if not may_create_key(caller, application, scope):
            raise NotAllowed(
                "A key must have fewer rights than your own, and you need the right admin for its queues. Choose fewer "
                "verbs or fewer queues."
            )
        if len(note) > MAX_NOTE_LENGTH or not is_readable(note):
            raise InvalidRequest({"note": f"Use at most {MAX_NOTE_LENGTH} characters that show, no space at an end"})
        if not 0 < seconds <= MAX_KEY_SECONDS:
            raise InvalidRequest({"expires": f"Use more than 0 s and at most {MAX_KEY_SECONDS // 86_400} d"})
        expires = self._clock() + seconds
        if until is not None and expires > until:
            raise InvalidRequest({"expires": "Later than the end of your own key or session. Choose a shorter time"})
        return expires

    async def issue(self, application: str, scope: Scope, expires: float, note: str) -> tuple[str, Key]:
        """Makes a key after :meth:`check`. Returns its secret, which is not stored, and the stored part."""
        secret = secrets.token_hex(32)
        digest = sha256(secret.encode()).digest()
        return secret, await self._applications.add_key(application, digest, expires=expires, note=note, scope=scope)

    async def find(self, application: str, caller: Caller, name: str) -> Key:
        for key in await self.list(application, caller):
            if key.id == name:
                return key
        raise KeyNotFound(name)

    async def revoke(self, application: str, caller: Caller, name: str) -> None:
        """Revokes a key that the caller may make. Other processes accept it for up to ten more seconds."""
        await self._applications.revoke_key(application, (await self.find(application, caller, name)).id)


def _is_fewer(key: Key, caller: Caller) -> bool:
    return key.application != OPERATORS and key.scope is not None and may_create_key(caller, key.application, key.scope)


class UserLogin(msgspec.Struct, frozen=True, array_like=True):
    """A user who has logged in. Rights are not stored; they follow from the present settings.

    Attributes:
        issuer: Issuer of the token.
        users: Applications, the user's name in each, such as ``user:nhabavi2.ann``, and the user's roles there.
    """

    issuer: str
    users: tuple[tuple[str, str, tuple[str, ...]], ...]


class LoginSession(msgspec.Struct, frozen=True, array_like=True):
    """An open session.

    Attributes:
        expires: Seconds since 1970; 0 after a logout.
    """

    holder: bytes | UserLogin
    expires: float


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LoginSession).decode


class Sessions:
    """Begins, finds and ends sessions."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def begin(self, holder: bytes | UserLogin, *, until: float | None = None) -> tuple[str, LoginSession]:
        """Begins a session, which ends at ``until`` at the latest. Returns its token, too."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        expires = self._clock() + SESSION_SECONDS
        session = LoginSession(holder, expires if until is None else min(expires, until))
        await self._store.ledger.enter(_session_work(token), _ONLY_INDEX, _encode(session), expected=None)
        return token, session

    async def make_link(self, holder: bytes) -> str:
        """Returns the token of a link that logs in once, within ``LINK_SECONDS``, with the key of this digest."""
        token = secrets.token_urlsafe(LINK_BYTES)
        link = _encode(LoginSession(holder, self._clock() + LINK_SECONDS))
        await self._store.ledger.enter(_link_work(token), _ONLY_INDEX, link, expected=None)
        return token

    async def redeem(self, token: str) -> bytes:
        """Uses up the token of a link and returns the digest of its key. Only one of several callers gets it.

        Raises:
            NotAuthenticated: The link does not exist, was used, or has expired.
        """
        holder: bytes | None = None

        def decide(entry: bytes | None) -> Entry | None:
            nonlocal holder
            link = LoginSession(b"", 0.0) if entry is None else _decode(entry)
            holder = link.holder if isinstance(link.holder, bytes) and link.expires > self._clock() else None
            return None if holder is None else Entry(_encode(LoginSession(b"", 0.0)))

        await self._store.ledger.change(_link_work(token), _ONLY_INDEX, decide)
        if holder is not None:
            return holder
        raise NotAuthenticated("This link was used before, or has expired.")

    async def find(self, token: str) -> LoginSession:
        entry = await self._store.ledger.entry(_session_work(token), _ONLY_INDEX)
        session = None if entry is None else _decode(entry)
        if session is None or session.expires <= self._clock():
            raise NotAuthenticated("The session has ended. Log in again.")
        return session

    async def end(self, token: str) -> None:
        """Ends the session of a token, if it has one. Other processes refuse the token within seconds."""
        ended = Entry(_encode(LoginSession(b"", 0.0)))
        await self._store.ledger.change(
            _session_work(token), _ONLY_INDEX, lambda entry: None if entry is None else ended
        )


def _session_work(token: str) -> str:
    return f"console session {sha256(token.encode()).hexdigest()}"


def _link_work(token: str) -> str:
    return f"console link {sha256(token.encode('utf-8', 'replace')).hexdigest()}"
