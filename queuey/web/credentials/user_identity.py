"""What users are given: their names, and the rights of their applications' patterns."""

from __future__ import annotations

import math
from collections.abc import Iterable

from queuey.access import USERS_OF, Grant, name_within
from queuey.settings import UserIssuer
from queuey.user_queues import queue_name
from queuey.web.credentials import Identity


def identity_of(users: Iterable[tuple[str, UserIssuer, str]], expires: float) -> Identity:
    """Returns the identity that a credential gives its holder.

    Args:
        users: The applications of which the holder is a user, the issuer that each trusts, and the user's name there.
        expires: Seconds since 1970 when the credential ends.
    """
    users = list(users)
    return Identity(
        names=frozenset(name_within(application, user) for application, _, user in users),
        grants=tuple(
            Grant(application, frozenset(verbs), queue_name(pattern, user))
            for application, issuer, user in users
            for pattern, verbs in issuer.queues.items()
        ),
        tenant=min(f"{USERS_OF}{application}" for application, _, _ in users),
        expires=expires,
    )


def is_time(value: object, unit: int = 1) -> bool:
    """Returns whether a claim is a time since 1970: a number of seconds, or of 1/``unit`` of them."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value < unit << 40 and math.isfinite(value)
