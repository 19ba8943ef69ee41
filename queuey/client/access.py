"""Where a client gets its servers and its key from: arguments, environment, profile, in this order.

The environment and the profile are read when a client is made, never at import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import msgspec

from queuey.client.errors import InvalidArgument, ProfileNotFound
from queuey.client.profile import Profile, read_profile
from queuey.client.servers import Server, parse_servers

_KEY = re.compile(r"[!-:<-~]+")


class Access(msgspec.Struct, frozen=True):
    """The servers and the key to use there. ``key`` None: none is sent."""

    servers: tuple[Server, ...]
    key: str | None

    def __repr__(self) -> str:
        """Leaves the key out."""
        return f"Access(servers={self.servers!r}, key={'...' if self.key else None})"


def find_access(
    url: str | Iterable[str] | None = None, *, application: str | None = None, key: str | None = None
) -> Access:
    """Finds out which servers to use and with which key.

    An address comes from ``url``, else ``QUEUEY_URL``, else the profile; the application from the address,
    ``application``, ``QUEUEY_APP``, else the profile; the key from ``key``, else ``QUEUEY_KEY``, else the profile. The
    profile's key is used only with the profile's own servers and application: it is never sent anywhere else.

    Args:
        url: One or several addresses.
        application: For addresses that do not name it.
        key: The API key; empty: none, whatever the environment and the profile say.

    Raises:
        InvalidArgument: An address or the key cannot be used.
        ProfileError: The profile was needed and cannot be used.
    """
    if url is not None and not isinstance(url, str):
        url = list(url)
    url = url or os.environ.get("QUEUEY_URL") or None
    application = application or os.environ.get("QUEUEY_APP") or None
    if key is None:
        key = os.environ.get("QUEUEY_KEY") or None
    profile = _profile(required=url is None) if url is None or key is None else None
    if url is None and profile is not None:
        return _by_profile(profile, application, key)
    servers = parse_servers(url or "", application)
    if key is None and profile is not None and _opens(profile, servers):
        key = profile.key
    return Access(servers, _checked(key))


def _by_profile(profile: Profile, application: str | None, key: str | None) -> Access:
    own = parse_servers(profile.url, profile.application)
    if application is None or application == own[0].application:
        return Access(own, _checked(profile.key if key is None else key))
    return Access(tuple(msgspec.structs.replace(server, application=application) for server in own), _checked(key))


def _profile(*, required: bool) -> Profile | None:
    try:
        return read_profile()
    except ProfileNotFound as error:
        if not required:
            return None
        raise ProfileNotFound(
            f"no server is named: give its url, set QUEUEY_URL, or start `queuey serve` ({error})"
        ) from error


def _opens(profile: Profile, servers: tuple[Server, ...]) -> bool:
    own = {(server.origin, server.application) for server in parse_servers(profile.url, profile.application)}
    return all((server.origin, server.application) in own for server in servers)


def _checked(key: str | None) -> str | None:
    """Returns the key if a header can carry it. The error does not show it."""
    key = (key or "").strip()
    if key and _KEY.fullmatch(key) is None:
        raise InvalidArgument(
            "the API key has characters that no key has, such as spaces or letters with accents."
            " See where it comes from: key=, QUEUEY_KEY or the profile"
        )
    return key or None
