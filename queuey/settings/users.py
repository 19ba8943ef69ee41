"""The setting ``users``: the issuers that each application trusts, and the rights of their users."""

from __future__ import annotations

import ipaddress
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from queuey.model.user_queues import check_pattern, may_overlap
from queuey.settings.setting_values import SecretName

UserVerb = Literal["send", "read", "delete", "claim"]
RoleVerb = Literal["send", "read", "delete", "claim", "admin", "measure"]
Word = Annotated[str, Meta(pattern=r"\A[!-~]+\Z", max_length=255)]
"""Visible ASCII without spaces."""
Origin = Annotated[str, Meta(pattern=r"\Ahttps?://[a-z0-9.\-]+(:[0-9]{1,5})?\Z", max_length=255)]
"""An origin as a browser sends it: in lower case, without a path and without the default port."""
Role = Annotated[str, Meta(min_length=1, max_length=255)]
_APPLICATION = re.compile(r"[\w.\-]+")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-]+(?::[0-9]+)?")
_HOST = re.compile(r"[a-z0-9\-]+(?:\.[a-z0-9\-]+)*")
DEV_ISSUER = "http://localhost/queuey-dev"
"""The issuer of ``queuey dev``, whose keys anybody on this machine may have created. See docs/inbox.md."""
MAX_ISSUERS = 16


class UserIssuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An issuer that an application trusts, and the rights of its users.

    Attributes:
        scheme: `Bearer`: tokens (JWT) of an OpenID provider. `BrowserID`: assertions of a mail address.
        issuer: The exact `iss` of the tokens. With `BrowserID`: a host.
        audience: Accepted `aud`: a value or a list. With `BrowserID`: an origin such as `https://queuey.example.org`.
        keys: URL or file of the issuer's JSON Web Key Set. With `BrowserID`: of its support document.
        user: Claim that names the user. `email` is safe only if the issuer verifies addresses. Not with `BrowserID`.
        origins: Origins of pages that may use the application's queues from a browser, such as
            `https://app.example.com`.
        leeway: Max difference between the issuer's clock and this one, in seconds.
        domains: With `BrowserID`: mail domains that the issuer may certify; unset: its own host.
        queues: Rights in queues of the user's own: verbs by pattern, such as `inbox-{user}`.
        roles: Rights in all queues of the application: verbs by role, such as `queue-admins`. Not with `BrowserID`.
        roles_claim: Claim with the user's roles: a text, or a list of texts.
        client: Client id of the [console](console.md#users-of-an-openid-provider) at the issuer; one of the audiences.
        secret: Place of the client's secret: `env:NAME` or `file:PATH`; unset: a public client, protected by PKCE
            alone.
        scope: Scope that the console requests at the login, such as `openid email groups`.
    """

    scheme: Literal["Bearer", "BrowserID"] = "Bearer"
    issuer: Word
    audience: Word | tuple[Word, ...]
    keys: Annotated[str, Meta(min_length=1)]
    user: Word = "sub"
    origins: tuple[Origin, ...] = ()
    leeway: Annotated[float, Meta(ge=0, le=300)] = 30.0
    domains: tuple[str, ...] = ()
    queues: dict[str, tuple[UserVerb, ...]] = {}
    roles: dict[Role, tuple[RoleVerb, ...]] = {}
    roles_claim: Word = "groups"
    client: Word | None = None
    secret: str | None = None
    scope: Annotated[str, Meta(pattern=r"\Aopenid( [!-~]+)*\Z", max_length=255)] = "openid"

    @property
    def audiences(self) -> tuple[str, ...]:
        return (self.audience,) if isinstance(self.audience, str) else self.audience


Users = Mapping[str, tuple[UserIssuer, ...]]


def read_users(value: object, base: Path | None) -> Users:
    """Returns the issuers of each application. Relative paths of files start at ``base``.

    Args:
        value: A table of TOML, or the same as JSON text. Each application has a table or a list of tables.
        base: The directory that paths are relative to; None for the working directory.

    Raises:
        ValueError: The setting cannot be used; the text names the part and the reason.
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise ValueError(f"Expected JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("Expected a table for each application, [users.NAME]")  # noqa: TRY004 - of a setting's text
    users = {}
    for application, entry in value.items():
        tables = entry if isinstance(entry, list) else [entry]
        where = f"users.{application}"
        if _APPLICATION.fullmatch(application) is None or not 0 < len(tables) <= MAX_ISSUERS:
            raise ValueError(f"{where}: expected an application's name and 1 to {MAX_ISSUERS} issuers")
        try:
            issuers = tuple(_resolve_paths(issuer, base) for issuer in msgspec.convert(tables, tuple[UserIssuer, ...]))
            _check_application(issuers)
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(f"{where}: {str(error).rstrip('.')}") from error
        users[application] = issuers
    _check_issuers_agree(tuple(chain.from_iterable(users.values())))
    return users


def origins_of(users: Users) -> dict[str, list[str]]:
    by_name = {name: [origin for issuer in issuers for origin in issuer.origins] for name, issuers in users.items()}
    return {name: origins for name, origins in by_name.items() if origins}


def _resolve_paths(issuer: UserIssuer, base: Path | None) -> UserIssuer:
    keys, secret = issuer.keys, issuer.secret
    if "://" not in keys:
        keys = str((base or Path()) / Path(keys).expanduser())
    if secret is not None:
        try:
            secret = str(SecretName.parse(secret, base))
        except ValueError as error:
            raise ValueError(f"secret: {error}") from error
    return msgspec.structs.replace(issuer, keys=keys, secret=secret)


def _check_application(issuers: tuple[UserIssuer, ...]) -> None:
    """Raises ValueError for the first problem of an application's issuers.

    Two of them must differ in scheme or issuer, and no two patterns may match the same queue.
    """
    for issuer in issuers:
        if (fault := next(_find_problems(issuer), None)) is not None:
            raise ValueError(fault)
    for first, second in combinations(issuers, 2):
        if (first.scheme, first.issuer) == (second.scheme, second.issuer):
            raise ValueError(f"the issuer {first.issuer!r} is given twice: give it once, with several audiences")
    for pattern, further in combinations(dict.fromkeys(chain.from_iterable(issuer.queues for issuer in issuers)), 2):
        if may_overlap(pattern, further):
            raise ValueError(
                f"the patterns {pattern!r} and {further!r} might name the same queue: neither may begin as the other"
            )


def _find_problems(issuer: UserIssuer) -> Iterator[str]:
    if not issuer.audiences:
        yield "audience is empty"
    if "://" in issuer.keys and not is_safe_url(issuer.keys):
        yield f"keys is {issuer.keys!r}: expected https://host/path, http:// only on this machine, or a file"
    yield from _find_problems_of_rights(issuer)
    if issuer.scheme == "BrowserID":
        yield from _find_problems_of_browserid(issuer)
    elif issuer.domains:
        yield "domains is for scheme BrowserID only"
    if issuer.client is not None:
        yield from _find_problems_of_login(issuer, issuer.client)
    elif issuer.secret is not None or issuer.scope != "openid":
        yield "secret and scope are for logins to the console: give client as well"


def _find_problems_of_rights(issuer: UserIssuer) -> Iterator[str]:
    for pattern, verbs in issuer.queues.items():
        try:
            check_pattern(pattern)
        except ValueError as error:
            yield f"queues: {error}"
        if not verbs:
            choices = ", ".join(typing.get_args(UserVerb))
            yield f"queues: the pattern {pattern!r} has no verb: give some of {choices}"
    for role, allow in issuer.roles.items():
        if not allow:
            yield f"roles: {role!r} has no verb: give some of {', '.join(typing.get_args(RoleVerb))}"


def _find_problems_of_browserid(issuer: UserIssuer) -> Iterator[str]:
    if issuer.user != "sub":
        yield "user is for scheme Bearer only: an assertion has one mail address"
    if issuer.roles or issuer.client is not None:
        yield "roles and client are for scheme Bearer only"
    for host in (issuer.issuer, *issuer.domains):
        if _HOST.fullmatch(host) is None:
            yield f"{host!r} is not a host in lower case, such as login.example.org"
    for audience in issuer.audiences:
        if _ORIGIN.fullmatch(audience) is None:
            yield f"audience {audience!r} is not an origin such as https://queuey.example.org"


def _find_problems_of_login(issuer: UserIssuer, client: str) -> Iterator[str]:
    if client not in issuer.audiences:
        yield f"client is {client!r}, which is not in audience: add it, as tokens of a login are for the client"
    if not is_safe_url(issuer.issuer) or "?" in issuer.issuer:
        yield f"issuer is {issuer.issuer!r}: with client, expected https://host/path, http:// only on this machine"


def is_safe_url(url: str) -> bool:
    """Returns whether a URL is https, or http on this machine: nobody on the network can change its response.

    False for a URL with a user, a fragment, or anything but visible ASCII.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment or re.fullmatch(r"[!-~]+", url) is None:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_issuers_agree(issuers: Sequence[UserIssuer]) -> None:
    places: dict[tuple[str, str], UserIssuer] = {}
    for issuer in issuers:
        first = places.setdefault((issuer.scheme, issuer.issuer), issuer)
        if first.keys != issuer.keys:
            raise ValueError(
                f"the issuer {issuer.issuer!r} has keys at {first.keys!r} and at {issuer.keys!r}: give one place"
            )
    logins: dict[str, UserIssuer] = {}
    for issuer in issuers:
        first = logins.setdefault(issuer.issuer, issuer) if issuer.client is not None else issuer
        if (first.client, first.secret, first.scope) != (issuer.client, issuer.secret, issuer.scope):
            raise ValueError(
                f"the issuer {issuer.issuer!r} has several clients of the console: give one client, secret and scope"
            )
