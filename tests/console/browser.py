"""A browser for the console in process: it keeps cookies, fills in forms, and parses pages."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from queuey.app.service import App
from tests.web.gateway_calls import Reply, Request, serve

HOST = "localhost:5000"
_FIELD = re.compile(r'name="form_token" value="([^"]*)"')


def simplify_html(html: str) -> str:
    """Returns a page without colours of JSON and labels of cells, and with times as their tooltips show them."""
    html = re.sub(r'<span class="j[ksnl]">([^<]*)</span>', r"\1", html)
    html = re.sub(r'<time datetime="[^"]*" title="([^"]*)">[^<]*</time>', r"\1", html)
    return re.sub(r' data-label="[^"]*"', "", html)


class Browser:
    """Asks an application for pages, and keeps cookies until the application deletes them.

    Args:
        app: Application with the console.
        host: The Host header; a host that is not this machine gets cookies with the prefix.
    """

    def __init__(self, app: App, host: str = HOST) -> None:
        self.app = app
        self.host = host
        self.cookies: dict[str, str] = {}

    def get(self, path: str = "/console/health", *, query: str = "", headers: dict[str, str] | None = None) -> Reply:
        return self._send("GET", path, b"", query, headers or {})

    def get_part(self, path: str, *, query: str = "") -> Reply:
        """Requests a part of a page, as htmx does."""
        return self.get(path, query=query, headers={"hx-request": "true"})

    def post(self, path: str, fields: dict[str, str], headers: dict[str, str] | None = None) -> Reply:
        kind = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{self.host}"}
        return self._send("POST", path, urlencode(fields).encode(), "", kind | (headers or {}))

    def log_in(self, key: str, **fields: str) -> Reply:
        return self.post("/console/login", {"form_token": self.read_form_token("/console/login"), "key": key, **fields})

    def read_form_token(self, path: str) -> str:
        field = _FIELD.search(self.get(path).text)
        assert field is not None
        return field[1]

    def _send(self, method: str, path: str, body: bytes, query: str, headers: dict[str, str]) -> Reply:
        request = Request(method, path, body, query=query)
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {"host": self.host, **({"cookie": cookie} if cookie else {}), **headers}
        request.headers = [*sent.items(), *request.headers[1:]]
        reply = serve(self.app).reply_to(request)
        for name, value in reply.all_headers:
            if name.lower() == "set-cookie":
                self._keep_cookie(value)
        return reply

    def _keep_cookie(self, header: str) -> None:
        name, _, remainder = header.partition("=")
        value, *attributes = remainder.split("; ")
        if "Max-Age=0" in attributes:
            self.cookies.pop(name, None)
        else:
            self.cookies[name] = value
