"""The settings of a connection to ZooKeeper: servers, timeouts, encryption and credentials.

A URL, ``zookeeper://user:password@host:2181,host:2181/chroot?option=value``, may say:

========================  ==============================================================================================
``connect_timeout``       seconds that a first connection may take
``login``                 the scheme of the user and the password: ``digest`` (ZooKeeper's own) or ``sasl``
``login_file``            a file with ``user:password``, so that no list of processes shows them
``private``               whether nodes are open only to their creator; yes where there is a login
``tls``                   whether connections are encrypted; yes where a certificate or another option of TLS is given
``ca``, ``cert``, ``key``  files with certificates, the member's own certificate, and its key
``key_password``          of the key
``check_hostname``        whether certificates must name the host; yes
``shuffle``               whether each member tries the servers in a random order; yes
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

from qdo.coordination.paths import split_url
from qdo.errors import InvalidArgument
from qdo.keepalive.relay import Encryption
from queuey.extras import install_command

SESSION_TIMEOUT = 10.0
CONNECT_TIMEOUT = 15.0
_PATH = re.compile(r"(?!/zookeeper(?:/|$))(?:/(?!\.{1,2}(?:/|$))[^/]+)+")


@dataclass(frozen=True)
class DigestLogin:
    """A user and a password for ZooKeeper's own ``digest`` scheme; without TLS the password is readable on the wire.

    ZooKeeper accepts any user with any password: their nodes are closed to all others, see :class:`ConnectionOptions`.
    """

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user:
            raise InvalidArgument(f"a user of ZooKeeper is a name without a colon, not {self.user!r}")


@dataclass(frozen=True)
class SaslLogin(DigestLogin):
    """A user and a password that the servers know, by SASL's DIGEST-MD5. Needs the package ``pure-sasl``."""

    def __post_init__(self) -> None:
        # A missing package would otherwise show only once connected.
        super().__post_init__()
        try:
            import puresasl  # noqa: F401, PLC0415 - asked for only if it is needed
        except ModuleNotFoundError as error:
            message = "SASL needs a package that is not installed. Install it"
            raise InvalidArgument(f"{message}: {install_command('zookeeper-sasl')}") from error


class TlsOptions(Encryption):
    """Encryption; the attributes are those of :class:`qdo.keepalive.relay.Encryption`."""

    def context(self) -> ssl.SSLContext:
        try:
            return super().context()
        except (OSError, ValueError) as error:
            names = ", ".join(str(name) for name in (self.ca, self.cert, self.key) if name)
            raise InvalidArgument(f"TLS cannot be set up with {names}: {error}") from error


@dataclass(frozen=True)
class ConnectionOptions:
    """How a service is reached.

    Attributes:
        hosts: Its servers, with commas between them: ``host``, ``host:port`` or ``[address]:port``.
        chroot: A path that everything is kept under, made when it is missing: empty, or ``/a/b``.
        session_timeout: Seconds without a sign of life after which a session ends. The servers allow no less than 2
            and no more than 20 of their ticks and say what they granted.
        connect_timeout: Seconds that a first connection may take.
        login: User and password of the members.
        tls: How connections are encrypted; None: they are not.
        private: Nodes are open only with the same credentials; None: if there is a login.
        shuffle: Each member tries the servers in a random order.
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
            raise InvalidArgument("no server of ZooKeeper is named")
        for host in self.servers:
            _check_host(host)
        if self.chroot:
            checked_path("the chroot of coordination", self.chroot)
        for name in ("session_timeout", "connect_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidArgument(f"{name} is a number of seconds above 0")

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(host.strip() for host in self.hosts.split(","))

    @property
    def closed(self) -> bool:
        """Nodes are open only to their creator."""
        return self.login is not None if self.private is None else self.private


def checked_path(argument: str, path: str) -> str:
    """Returns a path; raises InvalidArgument if a program cannot have a node of its own there."""
    if _PATH.fullmatch(path) is None or not path.isprintable():
        raise InvalidArgument(f"{argument} is {path!r}: give the path of a node, such as /apps/orders")
    return path


def _check_host(host: str) -> None:
    parts = urlsplit(f"//{host}")
    try:
        usable = bool(parts.hostname) and "@" not in host and not parts.path and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgument(f"a server of ZooKeeper is host or host:port, not {host!r}")


SCHEME = "zookeeper"
LOGINS: Mapping[str, type[DigestLogin]] = {"digest": DigestLogin, "sasl": SaslLogin}
WORDS = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}


def parse(url: str, *, session_timeout: float | None = None, **options: Any) -> ConnectionOptions:  # noqa: ANN401 - checked here
    """Returns how the service is reached.

    Args:
        url: See the module.
        session_timeout: Seconds; None: the default.
        **options: They win over those of the URL.

    Raises:
        InvalidArgument: An option is unknown, or has a value that cannot be used.
    """
    parts = split_url(url, SCHEME, f"{SCHEME}://host:port,host:port/chroot")
    login, _, hosts = parts.netloc.rpartition("@")
    values = _read(dict(parse_qsl(parts.query, keep_blank_values=True)) | options)
    timeouts = {"connect_timeout": values.pop("connect_timeout")} if "connect_timeout" in values else {}
    if session_timeout is not None:
        timeouts["session_timeout"] = session_timeout
    return ConnectionOptions(
        hosts=hosts,
        chroot=unquote(parts.path).rstrip("/"),
        login=_login(login, values.pop("login", "digest"), values.pop("login_file", None)),
        private=values.pop("private", None),
        shuffle=values.pop("shuffle", True),
        tls=_tls(values),
        **timeouts,
    )


def _flag(value: Any) -> bool:  # noqa: ANN401 - may be anything
    return value if isinstance(value, bool) else WORDS[str(value).lower()]


OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "connect_timeout": float,
    "login": str,
    "login_file": Path,
    "private": _flag,
    "tls": _flag,
    "ca": Path,
    "cert": Path,
    "key": Path,
    "key_password": str,
    "check_hostname": _flag,
    "shuffle": _flag,
}


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, value in options.items():
        if name not in OPTIONS:
            raise InvalidArgument(f"ZooKeeper has no option {name!r}, but {', '.join(OPTIONS)}")
        try:
            values[name] = OPTIONS[name](value)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidArgument(f"{name} cannot be {value!r}") from error
    return values


def _login(text: str, kind: str, file: Path | None) -> DigestLogin | None:
    if kind not in LOGINS:
        raise InvalidArgument(f"a login is {' or '.join(LOGINS)}, not {kind!r}")
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
        raise InvalidArgument("a login is a user and a password with a colon between them")
    return LOGINS[kind](user, password)


def _tls(values: dict[str, Any]) -> TlsOptions | None:
    wanted = values.pop("tls", None)
    password = values.pop("key_password", None)
    if wanted is None:
        wanted = bool(values)
    elif not wanted and values:
        raise InvalidArgument(f"{', '.join(values)} without TLS")
    return TlsOptions(password=password, **values) if wanted else None
