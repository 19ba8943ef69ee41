"""The two cookies of the console, and the tokens of its forms that are bound to them.

Their names begin with ``__Host-``, which a browser accepts over https alone, from this very host, for all of its paths.
Over http on the machine itself not every browser accepts such a cookie, so there they have names without the prefix;
``docs/decisions/0040-console-sessions.md`` weighs that.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode

from queuey.web.requests import Request
from queuey.web.responses import Header

SESSION, VISITOR = "queuey-console", "queuey-console-login"
"""Of who has logged in, and of who is about to."""
VISIT_SECONDS = 3600
"""Timeout of a login form, in seconds."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_OF_PROXIES = frozenset({"forwarded", "via"})
"""Headers that proxies add, beside ``x-forwarded-`` and a name."""


def is_on_this_machine(request: Request) -> bool:
    """Returns whether a browser on this machine sends the request over http."""
    return request.scheme == "http" and host_of(request) in _LOOPBACK


def is_direct(request: Request) -> bool:
    """Returns whether a browser on this machine sends the request, under a name of this machine and by no proxy.

    A page of another host whose name leads here (DNS rebinding) has its own name in the header Host.
    """
    names = request.headers.keys()
    forwarded = not _OF_PROXIES.isdisjoint(names) or any(name.startswith("x-forwarded-") for name in names)
    return host_of(request) in _LOOPBACK and not forwarded


def origin_of(request: Request) -> str:
    """Returns the origin of the console as a browser sees it: https, though a proxy may end it, but on this machine."""
    return f"{'http' if is_on_this_machine(request) else 'https'}://{request.headers.get('host', '')}"


def host_of(request: Request) -> str:
    """Returns the requested host without the port."""
    return name_of(request.headers.get("host", ""))


def name_of(authority: str) -> str:
    """Returns the name or address in ``name:port``."""
    return re.sub(r":\d*$", "", authority.lower())


def read(request: Request, name: str) -> str | None:
    wanted = _name(request, name)
    for part in request.headers.get("cookie", "").split(";"):
        given, _, token = part.strip().partition("=")
        if given == wanted and _TOKEN.fullmatch(token):
            return token
    return None


def put(request: Request, name: str, token: str, seconds: int) -> Header:
    """Returns a Set-Cookie header with a token and its age in seconds."""
    secure = "" if is_on_this_machine(request) else "; Secure"
    value = f"{_name(request, name)}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return ("Set-Cookie", value)


def drop(request: Request, name: str) -> Header:
    """Returns a Set-Cookie header that deletes the cookie."""
    return put(request, name, "", 0)


def form_token(token: str) -> str:
    """Returns the token that a form sends; it can be computed with the cookie only."""
    return urlsafe_b64encode(hmac.digest(token.encode(), b"console form", "sha256")).decode().rstrip("=")


def _name(request: Request, name: str) -> str:
    return name if is_on_this_machine(request) else f"__Host-{name}"
