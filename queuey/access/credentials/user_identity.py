"""Identities of users: their names, and the rights that their applications give them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from queuey.access.credentials.readers import Identity
from queuey.access.issued_credentials import UserLogin
from queuey.model.errors import NotAuthenticated
from queuey.model.rights import USERS_TENANT_PREFIX, Grant, Verb, name_within
from queuey.model.user_queues import queue_name
from queuey.settings import UserIssuer, Users

Trusted = Sequence[tuple[str, UserIssuer]]


class User(NamedTuple):
    """The holder of a credential, as one application sees it.

    Attributes:
        name: The user's name, such as ``user:nhabavi2.ann``.
        roles: Roles from the issuer. Those that are not in the setting have no effect.
    """

    application: str
    issuer: UserIssuer
    name: str
    roles: tuple[str, ...] = ()


def identity_of(users: Iterable[User], expires: float) -> Identity:
    """Returns the identity that a credential gives its holder.

    Its requests count for the first of the applications by name (``tenant``).
    """
    users = list(users)
    return Identity(
        names=frozenset(name_within(user.application, user.name) for user in users),
        grants=tuple(grant for user in users for grant in _make_grants(user)),
        tenant=min(f"{USERS_TENANT_PREFIX}{user.application}" for user in users),
        expires=expires,
    )


def identity_of_login(trusting: Users, login: UserLogin, expires: float) -> Identity:
    """Returns the present identity of a login, without applications that no longer trust its issuer for logins.

    Raises:
        NotAuthenticated: No application trusts the issuer for logins any more.
    """
    users = [
        User(application, issuer, name, roles)
        for application, name, roles in login.users
        for issuer in trusting.get(application, ())
        if issuer.issuer == login.issuer and issuer.client is not None
    ]
    if not users:
        raise NotAuthenticated("The session has ended: its issuer is not trusted any more. Log in again.")
    return identity_of(users, expires)


def _make_grants(user: User) -> Iterator[Grant]:
    for pattern, verbs in user.issuer.queues.items():
        yield Grant(user.application, frozenset(verbs), queue_name(pattern, user.name))
    everywhere = frozenset[Verb]().union(*(user.issuer.roles.get(role, ()) for role in user.roles))
    if everywhere:
        yield Grant(user.application, everywhere)


def is_time(value: object, unit: int = 1) -> bool:
    """Returns whether a claim is a time since 1970, in units of 1/``unit`` second."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value < unit << 40 and math.isfinite(value)
