"""From ``zookeeper://user:password@host:2181,host:2181/chroot?option=value`` to how the service is reached.

========================  ==============================================================================================
``connect_timeout``       seconds that a first connection may take
``login``                 what the user and the password are for: ``digest`` (ZooKeeper's own scheme) or ``sasl``
``login_file``            a file with ``user:password``, so that no list of processes shows them
``private``               whether nodes are open only to who made them; yes where there is a login
``tls``                   whether connections are encrypted; yes where one of the next four is given
``ca``, ``cert``, ``key``  files with certificates, the member's own certificate, and its key
``key_password``          of the key
``check_hostname``        whether certificates must name the host; yes
``shuffle``               whether members try the servers in an order of their own; yes
========================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from qdo.coordination.zookeeper.connection_options import ConnectionOptions, DigestLogin, SaslLogin, TlsOptions
from qdo.errors import InvalidArgument

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
        InvalidArgument: Something of it cannot be used.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.fragment:
        raise InvalidArgument(f"ZooKeeper is named by {SCHEME}://host:port,host:port/chroot, not by {url!r}")
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


def _seconds(value: Any) -> float:  # noqa: ANN401 - may be anything
    return float(value)


def _flag(value: Any) -> bool:  # noqa: ANN401 - may be anything
    return value if isinstance(value, bool) else WORDS[str(value).lower()]


OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "connect_timeout": _seconds,
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
