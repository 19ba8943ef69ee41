"""Answers, taken apart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class Headers(dict[str, str]):
    """Headers, whose names may be written in any case."""

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        super().__init__({name.lower(): value for name, value in headers})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as given
        """Returns the value of a header."""
        return super().get(name.lower(), default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and dict(self) == {name.lower(): value for name, value in other.items()}

    __hash__ = None


class Reply:
    """An answer, taken apart."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.all_headers = headers
        self.headers = Headers(headers)
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
