"""Addresses of servers, and the service in this process.

The embedded service is found by an entry point, because its package may import the client but not the reverse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from queuey.client.calls.call import path_segment
from queuey.client.errors import InvalidArgument
from queuey.model.extras import DISTRIBUTION

DEFAULT_APPLICATION = "queuey"

_UNUSABLE_NAMES = frozenset({"", ".", ".."})
_PATH = re.compile(r"(?P<prefix>.*?)(?:/v1/(?P<application>[^/]+))?/?")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff\\]")
ENTRY_POINTS = "queuey.embedded"


class Server(msgspec.Struct, frozen=True):
    """The address of a server and of an application on it.

    ``base`` is the address of the application, with a final slash. ``origin`` always has a port, and no path.

    Attributes:
        root: Address of the server without a final slash: ``http://127.0.0.1:5000``.
        application: The application's name.
        local: The server runs on this machine.
    """

    root: str
    application: str
    local: bool

    def __post_init__(self) -> None:
        if self.application in _UNUSABLE_NAMES or "/" in self.application:
            raise InvalidArgument(f"{self.application!r:.100} is not a valid name of an application")
        path_segment(self.application)

    @property
    def base(self) -> str:
        return f"{self.root}/v1/{quote(self.application, safe='')}/"

    @property
    def origin(self) -> str:
        parts = urlsplit(self.root)
        return f"{parts.scheme}://{parts.hostname}:{parts.port or _DEFAULT_PORTS[parts.scheme]}"


_DEFAULT_PORTS = {"http": 80, "https": 443}


def has_unsafe_segments(path: str) -> bool:
    """Returns whether a path has empty, ``.`` or ``..`` segments, which clients, proxies or servers resolve."""
    return not _UNUSABLE_NAMES.isdisjoint(unquote(path).split("/")[1:])


def parse_servers(addresses: str | Iterable[str], application: str | None) -> tuple[Server, ...]:
    """Parses one or several addresses, as a comma-separated text or an iterable. Leaves out repetitions.

    Each is ``http://host:port`` or ``http://host:port/v1/application/``, with or without the final slash.

    Args:
        addresses: The addresses.
        application: The application if no address names one, by default ``queuey``.

    Raises:
        InvalidArgument: An address is not valid, or several applications are named.
    """
    texts = addresses.split(",") if isinstance(addresses, str) else addresses
    parsed = [_parse_address(text.strip()) for text in texts if text.strip()]
    if not parsed:
        raise InvalidArgument("no server address was given")
    names = {name for _, name, _ in parsed if name is not None} | (set() if application is None else {application})
    if len(names) > 1:
        raise InvalidArgument(f"the addresses name several applications ({', '.join(sorted(names))}); a client has one")
    name = names.pop() if names else DEFAULT_APPLICATION
    return tuple(dict.fromkeys(Server(root, name, local) for root, _, local in parsed))


def _parse_address(text: str) -> tuple[str, str | None, bool]:
    """Returns the root URL, the application if the address names one, and whether the host is this machine."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"not the address of a server: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("an address must not contain credentials: pass the key as key=")
    if parts.scheme not in _DEFAULT_PORTS or not host or port == 0 or _UNPRINTABLE.search(text):
        raise InvalidArgument(f"{text!r} is not the address of a server, such as http://127.0.0.1:5000")
    if "?" in text or "#" in text:
        raise InvalidArgument(f"{text!r} has a query or a fragment: leave it out of the address of a server")
    match = _PATH.fullmatch(parts.path)
    if match is None or "/v1" in match["prefix"] or has_unsafe_segments(match["prefix"]):
        raise InvalidArgument(f"{text!r} does not end with the server or with /v1/<application>/")
    name = match["application"]
    return f"{parts.scheme}://{parts.netloc}{match['prefix']}", None if name is None else unquote(name), _is_local(host)


def _is_local(host: str) -> bool:
    """Returns whether a host is ``localhost``, below it, or a loopback address. Looks up no name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def opener(name: str) -> Callable[..., Any]:
    """Returns the function of :mod:`queuey.embedded` with this name.

    Raises:
        InvalidArgument: No installed package has this entry point.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and rarely needed

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        function: Callable[..., Any] = entry.load()
        return function
    raise InvalidArgument(
        f"no installed package has the entry point {name!r} of {ENTRY_POINTS!r}, which opens a store in this process. "
        f"Install {DISTRIBUTION} again, or use queuey.embedded.{name}"
    )
