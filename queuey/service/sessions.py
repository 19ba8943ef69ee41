"""Use cases of sessions: a browser that has logged in once is known by a token, in every process of a service.

A session is an entry of the store's ledger under the hash of its token. The store has no token and no key, so a copy of
it opens nothing. ``docs/decisions/0040-console-sessions.md`` says why sessions are kept there, and
``0042-console-login-by-provider.md`` what is kept of a user.
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
"""Seconds after which a session ends, whatever is done with it; the ledger keeps entries longer."""
TOKEN_BYTES = 32
_FIRST = 0
"""The only piece of a session's work in the ledger."""


class UserLogin(msgspec.Struct, frozen=True, array_like=True):
    """Who has logged in as a user. What the user may do is not kept: that follows from the settings of the moment.

    Attributes:
        issuer: Who has said so.
        users: Applications, the user's name in each, such as ``user:nhabavi2.ann``, and the user's roles there.
    """

    issuer: str
    users: tuple[tuple[str, str, tuple[str, ...]], ...]


class Session(msgspec.Struct, frozen=True, array_like=True):
    """What a session stands for.

    Attributes:
        holder: Who has logged in: the digest of the key that was shown, or a user.
        expires: Seconds since 1970; 0: it was ended.
    """

    holder: bytes | UserLogin
    expires: float


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Session).decode


class Sessions:
    """Begins, finds and ends sessions; blocks.

    Args:
        store: Has the ledger.
        clock: Seconds since 1970.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def begin(self, holder: bytes | UserLogin, *, until: float | None = None) -> tuple[str, Session]:
        """Begins a session; returns its token and the session.

        Args:
            holder: Who has logged in: the digest of the key that was shown, which is valid, or a user.
            until: Seconds since 1970 when the key ends; None: never.
        """
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
