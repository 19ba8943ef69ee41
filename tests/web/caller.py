"""A client that calls the WSGI application the way a server does."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

from tests.web import published

Environ = dict[str, Any]


class Reply:
    """An answer, taken apart."""

    def __init__(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = int(status.split(" ", 1)[0])
        self.headers = dict(headers)
        self.body = body

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - tests look into it
        """The body as JSON."""
        assert self.is_json, self.text
        return json.loads(self.body)

    @property
    def is_json(self) -> bool:
        """Whether the answer says that its body is JSON."""
        kind = self.headers["Content-Type"].partition(";")[0]
        return kind in {"application/json", "application/problem+json"}

    @property
    def errors(self) -> dict[str, str]:
        """The texts of a refusal in version 1's form."""
        assert self.json["status"] == "error"
        found: dict[str, str] = self.json["error_msg"]
        return found

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of a successful answer."""
        assert self.status in {200, 201}, self.text
        found: list[dict[str, Any]] = self.json["messages"]
        return found

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the messages."""
        return [message["body"] for message in self.messages]

    def __repr__(self) -> str:
        return f"<Reply {self.status} {self.body[:300]!r}>"


class Caller:
    """Calls an application with one credential; every answer is checked against the OpenAPI document."""

    def __init__(self, app: Any, authorization: str | None = None, base: str = "/v1/queuey") -> None:  # noqa: ANN401
        self.app = app
        self.authorization = authorization
        self.base = base

    def environ(
        self, method: str, path: str, body: bytes, headers: dict[str, str], query: str, *, length: bool = True
    ) -> Environ:
        """Returns the environ of a request; the path is percent-encoded."""
        environ: Environ = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query,
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        if length and (body or method in {"POST", "PUT"}):
            environ["CONTENT_LENGTH"] = str(len(body))
        if self.authorization is not None:
            environ["HTTP_AUTHORIZATION"] = self.authorization
        for name, value in headers.items():
            key = name.upper().replace("-", "_")
            raw = value.encode().decode("latin-1")
            environ[key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"] = raw
        return environ

    def send(self, environ: Environ) -> Reply:
        """Calls the application with an environ."""
        started: list[tuple[str, list[tuple[str, str]]]] = []
        body = b"".join(self.app(environ, lambda status, headers: started.append((status, headers))))
        [(status, headers)] = started
        return Reply(status, headers, body)

    def __call__(
        self,
        method: str,
        path: str = "",
        body: bytes | str = b"",
        *,
        headers: dict[str, str] | None = None,
        **query: object,
    ) -> Reply:
        """Sends a request; ``path`` is below the application unless it begins with a slash."""
        if not path.startswith("/"):
            path = f"{self.base}/{path}" if path else self.base
        path, _, given = path.partition("?")
        query_text = given or urlencode(query)
        raw = body.encode() if isinstance(body, str) else body
        reply = self.send(self.environ(method, path, raw, headers or {}, query_text))
        if method != "HEAD":
            content = json.loads(reply.body) if reply.is_json else "text"
            published.check(method, path, reply.status, reply.headers, content, raw="raw=" in query_text)
        return reply

    def get(self, path: str = "", **query: object) -> Reply:
        """Gets a resource."""
        return self("GET", path, b"", headers=None, **query)

    def send_json(self, method: str, path: str, content: object, **headers: str) -> Reply:
        """Sends JSON; ``X_TTL=…`` stands for a header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self(method, path, json.dumps(content), headers={"Content-Type": "application/json", **named})

    def send_form(self, method: str, path: str = "", **fields: object) -> Reply:
        """Sends a form."""
        return self(method, path, urlencode(fields), headers={"Content-Type": "application/x-www-form-urlencoded"})

    def create(self, name: str, **fields: object) -> str:
        """Creates a queue and returns its name."""
        reply = self.send_form("POST", "", queue_name=name, **fields)
        assert reply.status == 201, reply
        return name

    def post(self, queue: str, body: bytes | str, **headers: str) -> dict[str, Any]:
        """Posts one message and returns what became of it; ``X_TTL=…`` stands for a header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = self("POST", queue, body, headers=named)
        assert reply.status == 201, reply
        return reply.messages[0]

    def claim(self, queue: str = "q", **asked: object) -> list[dict[str, Any]]:
        """Claims messages."""
        reply = self("POST", f"{queue}/claims", b"", headers=None, **asked)
        assert reply.status == 200, reply
        return reply.messages

    def batch(self, queue: str, *items: object, **headers: str) -> Reply:
        """Posts a batch."""
        return self.send_json("POST", queue, {"messages": list(items)}, **headers)
