"""Use cases of sessions: a browser that has logged in once is known by a token, in every process of a service.

A session is an entry of the store's ledger under the hash of its token. The store has no token and no key, so a copy of
it opens nothing. See ``docs/decisions/0040-console-sessions.md``, and ``0042-console-login-by-provider.md`` for users.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from hashlib import sha256

import msgspec

from queuey.errors import Conflict, NotAuthenticated
from queuey.storage import Store

LIFETIME = 8 * 3600
"""Max seconds of a session; the ledger keeps entries longer."""
TOKEN_BYTES = 32
_FIRST = 0
"""Number of the only piece of a session in the ledger."""


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
        expires = self._clock() + LIFETIME
        session = Session(holder, expires if until is None else min(expires, until))
        self._store.enter(_work(token), _FIRST, _encode(session), expected=None)
        return token, session

    def find(self, token: str) -> Session:
        """Returns the session of a token.

        Raises:
            NotAuthenticated: There is none, or it has ended.
        """
        entry = self._store.entry(_work(token), _FIRST)
        session = None if entry is None else _decode(entry)
        if session is None or session.expires <= self._clock():
            raise NotAuthenticated("The session has ended. Log in again.")
        return session

    def end(self, token: str) -> None:
        """Ends a session, if there is one. Other processes learn of it within seconds."""
        work = _work(token)
        entry = self._store.entry(work, _FIRST)
        if entry is None:
            return
        try:
            self._store.enter(work, _FIRST, _encode(Session(b"", 0.0)), expected=entry)
        except Conflict:
            return


def _work(token: str) -> str:
    return f"console session {sha256(token.encode()).hexdigest()}"
