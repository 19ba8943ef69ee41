"""Credentials that the service hands out: keys that one caller makes for others, and sessions of browsers.

A key has fewer rights than its maker, and ends no later. A browser that has logged in once is known by a token, in
every process of a service: a session is an entry of the store's ledger under the hash of its token. The store has no
token and no key, so a copy of it opens nothing. See ``docs/decisions/0040-console-sessions.md``, and
``0042-console-login-by-provider.md`` for users.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from hashlib import sha256

import msgspec

from queuey.access import Caller, may_hand_on
from queuey.errors import Conflict, InvalidRequest, KeyNotFound, NotAllowed, NotAuthenticated
from queuey.messages import OPERATORS, Key, Scope
from queuey.storage import Applications, Store, bridge, exchange

SESSION_SECONDS = 8 * 3600
"""Max seconds of a session; the ledger keeps entries longer."""
TOKEN_BYTES = 32
LINK_SECONDS = 300
"""Max seconds for which a link logs in."""
LINK_BYTES = 16
_FIRST = 0
"""Number of the only piece of a session in the ledger."""
MAX_SECONDS = 366 * 86_400
"""Max seconds that a key lives."""
MAX_NOTE = 100
"""Max characters of a note."""


class Keys:
    """Lists, makes and revokes keys of applications; blocks."""

    def __init__(self, applications: Applications, clock: Callable[[], float] = time.time) -> None:
        self._applications = applications
        self._clock = clock

    def list(self, application: str, caller: Caller) -> list[Key]:
        """Returns the keys that the caller could have made, oldest first."""
        return [key for key in bridge.run(self._applications.keys(application)) if _is_fewer(key, caller)]

    def check(
        self, application: str, caller: Caller, scope: Scope, *, seconds: float, note: str, until: float | None
    ) -> float:
        """Checks that a caller may make a key for ``seconds``; returns its end, in seconds since 1970.

        ``until`` is the end of the caller's own key; None: never.

        Raises:
            NotAllowed: It would not have fewer rights than the caller.
            InvalidRequest: It would live too long, or the note is too long.
        """
        if not may_hand_on(caller, application, scope):
            raise NotAllowed(
                "A key has fewer rights than whoever makes it, who needs the right admin for the same queues: choose "
                "fewer verbs, or fewer queues."
            )
        if len(note) > MAX_NOTE or not note.isprintable():
            raise InvalidRequest({"note": f"Not at most {MAX_NOTE} printable characters"})
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidRequest({"expires": f"Not more than 0 s and at most {MAX_SECONDS // 86_400} d"})
        expires = self._clock() + seconds
        if until is not None and expires > until:
            raise InvalidRequest({"expires": "Later than your own key or session ends; choose a shorter time"})
        return expires

    def issue(self, application: str, scope: Scope, expires: float, note: str) -> tuple[str, Key]:
        """Makes a key that was checked; returns its secret, which is not kept, and the kept part."""
        secret = secrets.token_hex(32)
        digest = sha256(secret.encode()).digest()
        return secret, bridge.run(
            self._applications.add_key(application, digest, expires=expires, note=note, scope=scope)
        )

    def find(self, application: str, caller: Caller, name: str) -> Key:
        """Returns a key that the caller could have made.

        Raises:
            KeyNotFound: There is none of this id.
        """
        for key in self.list(application, caller):
            if key.id == name:
                return key
        raise KeyNotFound(name)

    def revoke(self, application: str, caller: Caller, name: str) -> None:
        """Revokes a key that the caller could have made; other processes accept it for ten seconds more.

        Raises:
            KeyNotFound: There is none of this id.
        """
        bridge.run(self._applications.revoke_key(application, self.find(application, caller, name).id))


def _is_fewer(key: Key, caller: Caller) -> bool:
    return key.application != OPERATORS and key.scope is not None and may_hand_on(caller, key.application, key.scope)


class UserLogin(msgspec.Struct, frozen=True, array_like=True):
    """A user who has logged in. Rights are not kept: they follow from the settings of the moment.

    Attributes:
        issuer: Of the token.
        users: Applications, the user's name in each, such as ``user:nhabavi2.ann``, and the user's roles there.
    """

    issuer: str
    users: tuple[tuple[str, str, tuple[str, ...]], ...]


class Session(msgspec.Struct, frozen=True, array_like=True):
    """An open session.

    Attributes:
        holder: The digest of the key that was shown, or a user.
        expires: Seconds since 1970; 0: it was ended.
    """

    holder: bytes | UserLogin
    expires: float


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Session).decode


class Sessions:
    """Begins, finds and ends sessions; blocks."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def begin(self, holder: bytes | UserLogin, *, until: float | None = None) -> tuple[str, Session]:
        """Begins a session of a valid key or a user, which ends at ``until`` at the latest; returns its token."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        expires = self._clock() + SESSION_SECONDS
        session = Session(holder, expires if until is None else min(expires, until))
        bridge.run(self._store.ledger.enter(_work(token), _FIRST, _encode(session), expected=None))
        return token, session

    def offer(self, holder: bytes) -> str:
        """Returns a token for a link that logs in once, within ``LINK_SECONDS``, with the key of a digest."""
        token = secrets.token_urlsafe(LINK_BYTES)
        link = _encode(Session(holder, self._clock() + LINK_SECONDS))
        bridge.run(self._store.ledger.enter(_link(token), _FIRST, link, expected=None))
        return token

    def redeem(self, token: str) -> bytes:
        """Spends the token of a link; returns the digest of its key. Only one of several callers gets it.

        Raises:
            NotAuthenticated: There is no such link, it was used, or it has expired.
        """
        entry = bridge.run(self._store.ledger.entry(_link(token), _FIRST))
        link = None if entry is None else _decode(entry)
        if link is not None and isinstance(link.holder, bytes) and link.expires > self._clock():
            # Random bytes, so that a caller knows its own value from that of another.
            spent = _encode(Session(secrets.token_bytes(LINK_BYTES), 0.0))
            if bridge.run(exchange(self._store.ledger, _link(token), _FIRST, spent, expected=entry)) == spent:
                return link.holder
        raise NotAuthenticated("This link was used before, or has expired.")

    def find(self, token: str) -> Session:
        """Returns the session of a token.

        Raises:
            NotAuthenticated: There is none, or it has ended.
        """
        entry = bridge.run(self._store.ledger.entry(_work(token), _FIRST))
        session = None if entry is None else _decode(entry)
        if session is None or session.expires <= self._clock():
            raise NotAuthenticated("The session has ended. Log in again.")
        return session

    def end(self, token: str) -> None:
        """Ends a session, if there is one. Other processes learn of it within seconds."""
        work = _work(token)
        entry = bridge.run(self._store.ledger.entry(work, _FIRST))
        if entry is None:
            return
        try:
            bridge.run(self._store.ledger.enter(work, _FIRST, _encode(Session(b"", 0.0)), expected=entry))
        except Conflict:
            return


def _work(token: str) -> str:
    return f"console session {sha256(token.encode()).hexdigest()}"


def _link(token: str) -> str:
    return f"console link {sha256(token.encode('utf-8', 'replace')).hexdigest()}"
