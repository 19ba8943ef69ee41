"""Credentials of members of consumer groups: who joined, and which rights the member has now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from queuey.access.credentials.readers import ApplicationKeys
from queuey.model.errors import NotAuthenticated
from queuey.model.rights import Caller, Grant, MemberCredential, owner_name

_DIGEST_BYTES = 32
"""Number of bytes of a key's digest."""
_OWNERS = owner_name("")


def credential_of(digests: Iterable[bytes], caller: Caller) -> MemberCredential:
    """Returns the credential of a caller, the same for as long as the caller has the same keys and names.

    Its id has the number of keys, their digests, and the user's names, which do not change when a token is renewed. A
    caller without keys that acts for an application has the application's name in it.
    """
    keys = sorted(set(digests))
    names = [name for name in caller.names if not (keys and name.startswith(_OWNERS))]
    text = "\n".join(sorted(names)).encode()
    return MemberCredential(bytes([len(keys)]) + b"".join(keys) + text, _make_rights(caller.names, caller.grants))


def _make_rights(names: Iterable[str], grants: Iterable[Grant]) -> Caller:
    return Caller(frozenset(names), tuple(sorted(set(grants), key=repr)))


class PresentRights:
    """Returns the present rights of credentials."""

    def __init__(self, keys: ApplicationKeys, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock

    async def __call__(self, credential: MemberCredential) -> MemberCredential | None:
        """Returns a credential with the rights that its keys have now, or None if a key is revoked or has expired.

        A user has the rights of its last token.

        Raises:
            StoreUnavailable: A key cannot be read now.
        """
        count = credential.id[0]
        starts = range(1, 1 + count * _DIGEST_BYTES, _DIGEST_BYTES)
        try:
            identities = [await self._keys.find(credential.id[start : start + _DIGEST_BYTES]) for start in starts]
        except NotAuthenticated:
            return None
        if any(key.expires is not None and key.expires <= self._clock() for key in identities):
            return None
        if len(credential.id) > starts.stop:
            return credential
        names = frozenset().union(*(key.names for key in identities))
        return MemberCredential(
            credential.id, _make_rights(names, (grant for key in identities for grant in key.grants))
        )
