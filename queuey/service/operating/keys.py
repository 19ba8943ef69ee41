"""Keys that one caller makes for others: each has fewer rights than its maker, and ends no later."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from hashlib import sha256

from queuey.access import Caller, may_hand_on
from queuey.errors import InvalidRequest, KeyNotFound, NotAllowed
from queuey.messages import OPERATORS, Key, Scope
from queuey.storage import Applications

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
        return [key for key in self._applications.keys(application) if _is_fewer(key, caller)]

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
        return secret, self._applications.add_key(application, digest, expires=expires, note=note, scope=scope)

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
        self._applications.revoke_key(application, self.find(application, caller, name).id)


def _is_fewer(key: Key, caller: Caller) -> bool:
    return key.application != OPERATORS and key.scope is not None and may_hand_on(caller, key.application, key.scope)
