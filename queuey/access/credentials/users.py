"""Makes the readers of users' credentials for the setting ``users``, and the providers of their logins.

The reader class of a scheme is an entry point of the group ``queuey.credentials``, named after the scheme. It is loaded
only if there are such users, because it needs optional libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from queuey.access.credentials.key_sets import IssuerDocument
from queuey.access.credentials.readers import CredentialReader
from queuey.model.errors import SettingsError
from queuey.model.extras import require
from queuey.settings import SecretName, Users

if TYPE_CHECKING:
    from queuey.access.credentials.code_flow import Provider
    from queuey.access.credentials.user_identity import Trusted

T = TypeVar("T")

ENTRY_POINTS = "queuey.credentials"
EXTRAS = {"Bearer": "users", "BrowserID": "browserid"}
"""The extra, by scheme, with the libraries that its reader needs."""


def make_readers(users: Users, *, prefetch: bool = True) -> list[CredentialReader]:
    """Makes a reader for each scheme that the users of an application have.

    Args:
        prefetch: Start to load the issuers' keys, so that the first request finds them.

    Raises:
        SettingsError: A library is not installed, or a key file cannot be used.
    """
    readers: list[CredentialReader] = []
    for scheme, extra in EXTRAS.items():
        trusted = [(name, issuer) for name, issuers in users.items() for issuer in issuers if issuer.scheme == scheme]
        if not trusted:
            continue
        entries = tuple(entry_points(group=ENTRY_POINTS, name=scheme))
        if not entries:
            raise SettingsError(f"Users of scheme {scheme} need a part of Queuey that is not installed.")
        require(extra, f"The reader of users of scheme {scheme}", SettingsError)
        kind = entries[0].load()
        readers.append(kind(trusted, _open_documents(trusted, kind.document, prefetch=prefetch)))
    return readers


def make_providers(
    users: Users, readers: Iterable[object], environ: Mapping[str, str], *, prefetch: bool = True
) -> list[Provider]:
    """Returns the login providers of the console: each issuer with a client once, in the order of the setting.

    Args:
        prefetch: Start to load the issuers' discovery documents.

    Raises:
        SettingsError: A library is not installed, or a secret cannot be read.
    """
    issuers = {i.issuer: i for trusted in users.values() for i in trusted if i.client is not None}
    if not issuers:
        return []
    require("users", "The login of users", SettingsError)
    from queuey.access.credentials.bearer import Bearer  # noqa: PLC0415 - an extra
    from queuey.access.credentials.code_flow import Provider  # noqa: PLC0415 - an extra

    [bearer] = [reader for reader in readers if isinstance(reader, Bearer)]
    providers = [
        Provider(issuer, None if issuer.secret is None else SecretName.parse(issuer.secret).read(environ), bearer)
        for issuer in issuers.values()
    ]
    for provider in providers:
        provider.discovery.start(prefetch=prefetch)
    return providers


def _open_documents(trusted: Trusted, parse: Callable[[bytes], T], *, prefetch: bool) -> dict[str, IssuerDocument[T]]:
    """Returns the key documents by issuer. Loads files now, and starts to load URLs if ``prefetch``.

    Raises SettingsError for a file that cannot be read.
    """
    documents = {issuer.issuer: IssuerDocument(issuer.issuer, issuer.keys, parse) for _, issuer in trusted}
    for document in documents.values():
        document.start(prefetch=prefetch)
    return documents
