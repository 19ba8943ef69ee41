"""Makes the readers of users' credentials that the setting ``users`` asks for, and the providers of their logins.

The class of the readers of a scheme is an entry point of the group ``queuey.credentials``, named as the scheme. It is
loaded only where there are such users, as it needs libraries that are extras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from queuey.errors import SettingsError
from queuey.extras import install_command
from queuey.settings import SecretName, Users
from queuey.web.credentials import CredentialReader
from queuey.web.credentials.key_sets import Published

if TYPE_CHECKING:
    from queuey.web.credentials.code_flow import Provider
    from queuey.web.credentials.user_identity import Trusted

T = TypeVar("T")

ENTRY_POINTS = "queuey.credentials"
EXTRAS = {"Bearer": "oidc", "BrowserID": "browserid"}
"""By scheme: what installs the libraries that its reader needs."""


def readers_of(users: Users, *, ask: bool = True) -> list[CredentialReader]:
    """Makes a reader for each scheme that some application's users have.

    Args:
        users: The setting.
        ask: Begin to ask issuers for their keys, so that the first request finds them.

    Raises:
        SettingsError: A library is not installed, or a file of keys cannot be used.
    """
    readers: list[CredentialReader] = []
    for scheme, extra in EXTRAS.items():
        trusted = [(name, issuer) for name, issuers in users.items() for issuer in issuers if issuer.scheme == scheme]
        if not trusted:
            continue
        entries = tuple(entry_points(group=ENTRY_POINTS, name=scheme))
        if not entries:
            raise SettingsError(f"Users of scheme {scheme} need a part of Queuey that is not installed.")
        try:
            kind = entries[0].load()
        except (ImportError, AttributeError) as error:
            raise SettingsError(
                f"Users of scheme {scheme} need a library that is not installed ({error}). Install it: "
                f"{install_command(extra)}"
            ) from error
        readers.append(kind(trusted, _published(trusted, kind.document, ask=ask)))
    return readers


def providers_of(
    users: Users, readers: Iterable[object], environ: Mapping[str, str], *, ask: bool = True
) -> list[Provider]:
    """Returns the login providers of the console: each issuer that has a client once, in the order of the setting.

    Args:
        users: The setting.
        readers: Made of it.
        environ: May have secrets of clients.
        ask: Begin to ask issuers for their discovery documents.

    Raises:
        SettingsError: A library is not installed, or a secret cannot be read.
    """
    issuers = {each.issuer: each for found in users.values() for each in found if each.client is not None}
    if not issuers:
        return []
    from queuey.web.credentials.bearer import Bearer  # noqa: PLC0415 - an extra

    try:
        from queuey.web.credentials.code_flow import Provider  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsError(
            f"Logins of users need a library that is not installed ({error}). Install it: {install_command('oidc')}"
        ) from error
    [bearer] = [reader for reader in readers if isinstance(reader, Bearer)]
    providers = [
        Provider(each, None if each.secret is None else SecretName.parse(each.secret).read(environ), bearer)
        for each in issuers.values()
    ]
    for provider in providers:
        provider.discovery.start(ask=ask)
    return providers


def _published(trusted: Trusted, parse: Callable[[bytes], T], *, ask: bool) -> dict[str, Published[T]]:
    found = {issuer.issuer: Published(issuer.issuer, issuer.keys, parse) for _, issuer in trusted}
    for each in found.values():
        each.start(ask=ask)
    return found
