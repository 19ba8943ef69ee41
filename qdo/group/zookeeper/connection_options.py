"""The settings of a connection to ZooKeeper: servers, timeouts, encryption and credentials.

A URL has the form ``zookeeper://user:password@host:2181,host:2181/chroot?option=value``. Its options are:

========================  ==============================================================================================
``connect_timeout``       timeout of the first connection in seconds
``login``                 the scheme of the user and the password: ``digest`` (ZooKeeper's own) or ``sasl``
``login_file``            a file with ``user:password``, so that process lists do not show them
``private``               whether only their creator can access nodes; the default is yes with a login
``tls``                   whether connections are encrypted; the default is yes with another TLS option
``ca``, ``cert``, ``key``  files with certificates, the member's own certificate, and its key
``key_password``          the password of the key
``check_hostname``        whether certificates must name the host; the default is yes
``shuffle``               whether each member tries the servers in a random order; the default is yes
========================  ==============================================================================================
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from qdo.errors import InvalidArgument
from qdo.group.zookeeper.paths import split_url
from qdo.group.zookeeper.relay import Encryption
from queuey.model.extras import require

SESSION_TIMEOUT = 10.0
CONNECT_TIMEOUT = 15.0
_PATH = re.compile(r"(?!/zookeeper(?:/|$))(?:/(?!\.{1,2}(?:/|$))[^/]+)+")


@dataclass(frozen=True)
class DigestLogin:
    """A user and a password for ZooKeeper's ``digest`` scheme. Without TLS the password is readable on the wire.

    ZooKeeper accepts any user with any password. Only the nodes that a user creates are closed to others; see
    :class:`ConnectionOptions`.
    """

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user:
            raise InvalidArgument(f"the user {self.user!r} is not valid: use a name without a colon")


@dataclass(frozen=True)
class SaslLogin(DigestLogin):
    """A user and a password for SASL's DIGEST-MD5, checked by the servers. Requires the package ``pure-sasl``."""

    def __post_init__(self) -> None:
        # Report a missing package now instead of after connecting.
        super().__post_init__()
        require("zookeeper", "SASL", InvalidArgument)


class TlsOptions(Encryption):
    """Encryption as in :class:`qdo.group.zookeeper.relay.Encryption`, but unusable files raise InvalidArgument."""

    def context(self) -> ssl.SSLContext:
        try:
            return super().context()
        except (OSError, ValueError) as error:
            names = ", ".join(str(name) for name in (self.ca, self.cert, self.key) if name)
            raise InvalidArgument(f"TLS cannot be set up with {names}: {error}") from error


@dataclass(frozen=True)
class ConnectionOptions:
    """How to connect to ZooKeeper.

    Attributes:
        hosts: The servers, separated by commas: ``host``, ``host:port`` or ``[address]:port``.
        chroot: The path of the node that contains everything, created if missing: empty, or ``/a/b``.
        session_timeout: Seconds without a heartbeat after which a session ends. The servers limit it to 2 to 20 of
            their ticks and return the granted timeout.
        connect_timeout: Timeout of the first connection in seconds.
        login: User and password of the members.
        tls: The encryption of connections, if any.
        private: Whether nodes require the creator's credentials. None means only with a login.
        shuffle: Whether each member tries the servers in a random order.

    Raises:
        InvalidArgument: A server, the chroot or a timeout is not valid, or no server is named.
    """

    hosts: str
    chroot: str = ""
    session_timeout: float = SESSION_TIMEOUT
    connect_timeout: float = CONNECT_TIMEOUT
    login: DigestLogin | None = None
    tls: TlsOptions | None = None
    private: bool | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InvalidArgument("the URL names no ZooKeeper server: give zookeeper://host:port")
        for host in self.servers:
            _check_host(host)
        if self.chroot:
            check_node_path("the chroot of coordination", self.chroot)
        for name in ("session_timeout", "connect_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidArgument(f"{name} must be a number of seconds above 0")

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(host.strip() for host in self.hosts.split(","))

    @property
    def nodes_are_private(self) -> bool:
        return self.login is not None if self.private is None else self.private


def check_node_path(argument: str, path: str) -> str:
    """Returns the path.

    Raises:
        InvalidArgument: The path is not valid for a node.
    """
    if _PATH.fullmatch(path) is None or not path.isprintable():
        raise InvalidArgument(f"{argument} is {path!r}: give the path of a node, such as /apps/orders")
    return path


def _check_host(host: str) -> None:
    try:
        parts = urlsplit(f"//{host}")
        usable = bool(parts.hostname) and "@" not in host and not parts.path and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgument(f"{host!r} is not a valid ZooKeeper server: use host or host:port")


SCHEME = "zookeeper"
LOGIN_CLASSES: Mapping[str, type[DigestLogin]] = {"digest": DigestLogin, "sasl": SaslLogin}
FLAG_WORDS = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}


def parse(url: str, *, session_timeout: float | None = None, **options: Any) -> ConnectionOptions:  # noqa: ANN401 - checked here
    """Returns the settings in a URL.

    Args:
        url: See the module.
        session_timeout: Seconds, or None for the default.
        **options: Options that override those in the URL.

    Raises:
        InvalidArgument: An option is unknown, or its value is not valid.
    """
    parts = split_url(url, SCHEME, f"{SCHEME}://host:port,host:port/chroot")
    login, _, hosts = parts.netloc.rpartition("@")
    values = _convert_options(dict(parse_qsl(parts.query, keep_blank_values=True)) | options)
    timeouts = {"connect_timeout": values.pop("connect_timeout")} if "connect_timeout" in values else {}
    if session_timeout is not None:
        timeouts["session_timeout"] = session_timeout
    return ConnectionOptions(
        hosts=hosts,
        chroot=unquote(parts.path).rstrip("/"),
        login=_read_login(login, values.pop("login", "digest"), values.pop("login_file", None)),
        private=values.pop("private", None),
        shuffle=values.pop("shuffle", True),
        tls=_make_tls(values),
        **timeouts,
    )


def _parse_flag(value: Any) -> bool:  # noqa: ANN401 - may be anything
    return value if isinstance(value, bool) else FLAG_WORDS[str(value).lower()]


OPTION_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "connect_timeout": float,
    "login": str,
    "login_file": Path,
    "private": _parse_flag,
    "tls": _parse_flag,
    "ca": Path,
    "cert": Path,
    "key": Path,
    "key_password": str,
    "check_hostname": _parse_flag,
    "shuffle": _parse_flag,
}


def _convert_options(options: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, value in options.items():
        if name not in OPTION_PARSERS:
            raise InvalidArgument(f"unknown ZooKeeper option {name!r}: use {', '.join(OPTION_PARSERS)}")
        try:
            values[name] = OPTION_PARSERS[name](value)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidArgument(f"{name} cannot be {value!r}") from error
    return values


def _read_login(text: str, kind: str, file: Path | None) -> DigestLogin | None:
    if kind not in LOGIN_CLASSES:
        raise InvalidArgument(f"the login must be {' or '.join(LOGIN_CLASSES)}, not {kind!r}")
    if file is not None:
        try:
            user, colon, password = file.read_text("utf-8").rstrip("\n").partition(":")
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"the login in {file} cannot be read: {error}") from error
    elif text:
        user, colon, password = (unquote(part) for part in text.partition(":"))
    else:
        return None
    if not colon:
        raise InvalidArgument("the login must be a user and a password, separated by a colon")
    return LOGIN_CLASSES[kind](user, password)


def _make_tls(values: dict[str, Any]) -> TlsOptions | None:
    enabled = values.pop("tls", None)
    if enabled is None:
        enabled = bool(values)
    elif not enabled and values:
        raise InvalidArgument(f"{', '.join(values)} cannot be used without TLS")
    return TlsOptions(password=values.pop("key_password", None), **values) if enabled else None
