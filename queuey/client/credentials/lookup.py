"""Finds a client's servers and credential: in its arguments, the environment or the profile, in this order.

The environment and the profile are read when a client is created, never at import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from queuey.client.credentials.profile import Profile, default_path, read_profile
from queuey.client.credentials.tokens import (
    AskToken,
    Token,
    TokenCommand,
    TokenFile,
    TokenFunction,
    TokenScheme,
    TokenSource,
)
from queuey.client.errors import InvalidArgument, ProfileNotFound
from queuey.client.http.servers import Server, parse_servers

_KEY = re.compile(r"[!-:<-~]+")


class Credential(msgspec.Struct, frozen=True):
    """A key, a fixed token, or a token source; at most one of them.

    Attributes:
        key: An API key.
        token: A fixed token.
        source: A source that returns a new token when needed. ``header`` is then None.
        scheme: Authorization scheme of tokens.
    """

    key: str | None = None
    token: str | None = None
    source: TokenSource | None = None
    scheme: TokenScheme = "Bearer"

    def __repr__(self) -> str:
        present = [name for name in ("key", "token", "source") if getattr(self, name) is not None]
        return f"Credential({', '.join(f'{name}=...' for name in present)})"

    @property
    def visible_scheme(self) -> str | None:
        if self.key is not None:
            return "Application"
        return None if self.token is None and self.source is None else self.scheme

    @property
    def header(self) -> str | None:
        if self.key is not None:
            return f"Application {self.key}"
        return None if self.token is None else f"{self.scheme} {self.token}"


NO_CREDENTIAL = Credential()


class Credentials(msgspec.Struct, frozen=True):
    """The servers of a client, and its credential for all of them."""

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
    """Returns the credential in a client's arguments, else in ``QUEUEY_KEY`` or ``QUEUEY_TOKEN_FILE``, else None.

    An empty key or token is a credential that sends nothing.

    Raises:
        InvalidArgument: Two credentials are given, or one is not valid.
    """
    if scheme not in get_args(TokenScheme):
        raise InvalidArgument(f"scheme is {scheme!r}: it must be 'Bearer' or 'BrowserID'")
    arguments = {"key": key, "token": token, "token_file": token_file, "token_command": token_command}
    sources = [name for name, value in arguments.items() if value is not None]
    if not sources:
        variables = {"key": "QUEUEY_KEY", "token_file": "QUEUEY_TOKEN_FILE"}
        values = {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}
        sources = [variables[name] for name in values]
        key, token_file = values.get("key"), values.get("token_file")
    if len(sources) > 1:
        raise InvalidArgument(f"{' and '.join(sources)} are both given: a client has one credential, leave one out")
    if not sources:
        return None
    if key is not None:
        return Credential(_normalize_key(key))
    if isinstance(token, str):
        return Credential(token=Token(token.strip()).token, scheme=scheme) if token else NO_CREDENTIAL
    if token is not None:
        return Credential(source=TokenFunction(token), scheme=scheme)
    source = TokenCommand(token_command) if token_command is not None else TokenFile(token_file or "")
    return Credential(source=source, scheme=scheme)


def find_access(
    url: str | Iterable[str] | None = None,
    credential: Credential | None = None,
    *,
    application: str | None = None,
    profile: str | Path | None = None,
) -> Credentials:
    """Finds the servers of a client and their credential.

    The address comes from ``url``, else from ``QUEUEY_URL``, else from the profile. The application comes from the
    address, ``application`` or ``QUEUEY_APP``, else from the profile. The credential is ``credential``, else that of
    the profile. The profile's credential is only ever sent to the profile's servers, for the profile's application.

    Raises:
        InvalidArgument: An address or the credential is not valid.
        ProfileError: The profile is needed but cannot be used.
    """
    if url is not None and not isinstance(url, str):
        url = list(url)
    url = (os.environ.get("QUEUEY_URL") or None) if url is None else url
    application = (os.environ.get("QUEUEY_APP") or None) if application is None else application
    path = default_path() if profile is None else Path(profile)
    written = _find_profile(path, required=url is None) if url is None or credential is None else None
    if url is None and written is not None:
        return _access_by_profile(written, path, application, credential)
    servers = parse_servers("" if url is None else url, application)
    if credential is None and written is not None and _is_profile_for(written, servers):
        credential = _credential_of(written, path)
    return Credentials(servers, credential or NO_CREDENTIAL)


def _access_by_profile(
    profile: Profile, path: Path, application: str | None, credential: Credential | None
) -> Credentials:
    """Returns the profile's servers and a credential; for another application, never the profile's own."""
    own = parse_servers(profile.url, profile.application)
    if application is None or application == own[0].application:
        return Credentials(own, credential or _credential_of(profile, path))
    servers = tuple(msgspec.structs.replace(server, application=application) for server in own)
    return Credentials(servers, credential or NO_CREDENTIAL)


def _credential_of(profile: Profile, path: Path) -> Credential:
    if not profile.token_file:
        return Credential(_normalize_key(profile.key))
    return Credential(source=TokenFile(path.parent / Path(profile.token_file).expanduser()))


def _find_profile(path: Path, *, required: bool) -> Profile | None:
    try:
        return read_profile(path)
    except ProfileNotFound as error:
        if not required:
            return None
        raise ProfileNotFound(
            f"no server address: give a URL, set QUEUEY_URL, or start `queuey serve` ({error})"
        ) from error


def _is_profile_for(profile: Profile, servers: tuple[Server, ...]) -> bool:
    own = {(server.origin, server.application) for server in parse_servers(profile.url, profile.application)}
    return all((server.origin, server.application) in own for server in servers)


def _normalize_key(key: str | None) -> str | None:
    key = (key or "").strip()
    if key and _KEY.fullmatch(key) is None:
        raise InvalidArgument(
            "the API key has invalid characters, such as spaces or accented letters."
            " Check where it comes from: key=, QUEUEY_KEY or the profile"
        )
    return key or None
