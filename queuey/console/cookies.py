"""The two cookies of the console, and the form tokens that are bound to them.

Their names begin with ``__Host-``: a browser accepts such a cookie only over https, from exactly this host, for all of
its paths. Over http on the same machine, not every browser accepts it, so the names lack the prefix there. See
``docs/decisions/0040-console-sessions.md``.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode

from queuey.web.requests import PROXY_PREFIXES, Request
from queuey.web.responses import Header

SESSION_COOKIE, VISITOR_COOKIE = "queuey-console", "queuey-console-login"
LOGIN_FORM_TIMEOUT = 3600
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_on_this_machine(request: Request) -> bool:
    return request.scheme == "http" and host_of(request) in _LOOPBACK


def came_without_proxy(request: Request) -> bool:
    """Returns whether the request came under a name of this machine, over http or https, and without a proxy.

    A page of another host whose name resolves to this machine (DNS rebinding) has its own name in the header Host.
    """
    return host_of(request) in _LOOPBACK and not any(name.startswith(PROXY_PREFIXES) for name in request.headers)


def origin_of(request: Request) -> str:
    """Returns the origin of the console in the browser: http on this machine, else https, which a proxy may end."""
    return f"{'http' if is_on_this_machine(request) else 'https'}://{request.headers.get('host', '')}"


def host_of(request: Request) -> str:
    return name_of(request.headers.get("host", ""))


def name_of(authority: str) -> str:
    """Returns the host name of an authority, such as that of an origin: in lower case, without the port."""
    return re.sub(r":\d*$", "", authority.lower())


def read(request: Request, name: str) -> str | None:
    """Returns the token in a cookie, or None if the cookie is missing or does not have the form of our tokens."""
    expected = _cookie_name(request, name)
    for pair in request.headers.get("cookie", "").split(";"):
        sent, _, token = pair.strip().partition("=")
        if sent == expected and _TOKEN.fullmatch(token):
            return token
    return None


def make_cookie(request: Request, name: str, token: str, seconds: int) -> Header:
    """Returns the header that sets a cookie for this many seconds, for this host alone and not for scripts.

    Browsers send it only with requests from this site, and only over https unless the request came over http on this
    machine.
    """
    secure = "" if is_on_this_machine(request) else "; Secure"
    value = f"{_cookie_name(request, name)}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return ("Set-Cookie", value)


def make_expired_cookie(request: Request, name: str) -> Header:
    return make_cookie(request, name, "", 0)


def form_token(token: str) -> str:
    return urlsafe_b64encode(hmac.digest(token.encode(), b"console form", "sha256")).decode().rstrip("=")


def _cookie_name(request: Request, name: str) -> str:
    return name if is_on_this_machine(request) else f"__Host-{name}"
