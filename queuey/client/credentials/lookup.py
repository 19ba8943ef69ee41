"""The servers and the credential of a client: from arguments, environment or profile, in this order.

The environment and the profile are read when a client is made, never at import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from queuey.client.credentials.profile import Profile, default_path, read_profile
from queuey.client.credentials.tokens import Asked, AskToken, Command, File, Token, TokenScheme, TokenSource
from queuey.client.errors import InvalidArgument, ProfileNotFound
from queuey.client.http.servers import Server, parse_servers

_KEY = re.compile(r"[!-:<-~]+")


class Credential(msgspec.Struct, frozen=True):
    """A key, a token, or a source of tokens; at most one of them.

    Attributes:
        key: An API key.
        token: A token that stays as it is.
        source: Gives tokens.
        scheme: Of tokens.
    """

    key: str | None = None
    token: str | None = None
    source: TokenSource | None = None
    scheme: TokenScheme = "Bearer"

    def __repr__(self) -> str:
        """Leaves the secrets out."""
        given = [name for name in ("key", "token", "source") if getattr(self, name) is not None]
        return f"Credential({', '.join(f'{name}=...' for name in given)})"

    @property
    def shown(self) -> str | None:
        """The scheme of the Authorization header; None: there is no credential."""
        if self.key is not None:
            return "Application"
        return None if self.token is None and self.source is None else self.scheme

    @property
    def header(self) -> str | None:
        """The constant Authorization header; None: there is none, or it comes from the source."""
        if self.key is not None:
            return f"Application {self.key}"
        return None if self.token is None else f"{self.scheme} {self.token}"


NOTHING = Credential()


class Credentials(msgspec.Struct, frozen=True):
    servers: tuple[Server, ...]
    credential: Credential


def find_credential(
    key: str | None = None,
    *,
    token: str | AskToken | None = None,
    token_file: str | Path | None = None,
    token_command: str | Sequence[str] | None = None,
    scheme: TokenScheme = "Bearer",
) -> Credential | None:
    """Returns the credential of a client's arguments, else of ``QUEUEY_KEY`` or ``QUEUEY_TOKEN_FILE``; else None.

    Raises:
        InvalidArgument: Two of them are given, or one cannot be used.
    """
    if scheme not in get_args(TokenScheme):
        raise InvalidArgument(f"scheme is {scheme!r}: it must be 'Bearer' or 'BrowserID'")
    given = {"key": key, "token": token, "token_file": token_file, "token_command": token_command}
    named = [name for name, value in given.items() if value is not None]
    if not named:
        variables = {"key": "QUEUEY_KEY", "token_file": "QUEUEY_TOKEN_FILE"}
        found = {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}
        named = [variables[name] for name in found]
        key, token_file = found.get("key"), found.get("token_file")
    if len(named) > 1:
        raise InvalidArgument(f"{' and '.join(named)} are both given: a client has one credential, leave one out")
    if not named:
        return None
    if key is not None:
        return Credential(_checked(key))
    if isinstance(token, str):
        return Credential(token=Token(token.strip()).token, scheme=scheme) if token else NOTHING
    if token is not None:
        return Credential(source=Asked(token), scheme=scheme)
    source = Command(token_command) if token_command is not None else File(token_file or "")
    return Credential(source=source, scheme=scheme)


def find_access(
    url: str | Iterable[str] | None = None, credential: Credential | None = None, *, application: str | None = None
) -> Credentials:
    """Finds the servers of a client and the credential for them.

    An address comes from ``url``, else ``QUEUEY_URL``, else the profile; the application from the address,
    ``application``, ``QUEUEY_APP``, else the profile; the credential from ``credential``, else the profile. The
    profile's credential is used only with the profile's own servers and application: it is never sent anywhere else.

    Raises:
        InvalidArgument: An address or the credential cannot be used.
        ProfileError: The profile was needed and cannot be used.
    """
    if url is not None and not isinstance(url, str):
        url = list(url)
    url = (os.environ.get("QUEUEY_URL") or None) if url is None else url
    application = (os.environ.get("QUEUEY_APP") or None) if application is None else application
    profile = _profile(required=url is None) if url is None or credential is None else None
    if url is None and profile is not None:
        return _by_profile(profile, application, credential)
    servers = parse_servers("" if url is None else url, application)
    if credential is None and profile is not None and _opens(profile, servers):
        credential = _credential_of(profile)
    return Credentials(servers, credential or NOTHING)


def _by_profile(profile: Profile, application: str | None, credential: Credential | None) -> Credentials:
    own = parse_servers(profile.url, profile.application)
    if application is None or application == own[0].application:
        return Credentials(own, credential or _credential_of(profile))
    servers = tuple(msgspec.structs.replace(server, application=application) for server in own)
    return Credentials(servers, credential or NOTHING)


def _credential_of(profile: Profile) -> Credential:
    if not profile.token_file:
        return Credential(_checked(profile.key))
    return Credential(source=File(default_path().parent / Path(profile.token_file).expanduser()))


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
