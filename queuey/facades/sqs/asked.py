"""A request of SQS that is being carried out, and what all actions do with it."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from queuey.facades.sqs.attributes import ACCOUNT
from queuey.facades.sqs.errors import missing
from queuey.facades.sqs.protocols import Call, parameters
from queuey.web.endpoint import Match
from queuey.web.requests import Request

T = TypeVar("T")
Result = dict[str, Any]
"""Result of an action, by the names of AWS JSON."""


class Asked(NamedTuple):
    """A signed request.

    Attributes:
        request: As it came.
        call: The action and its parameters.
        application: The application whose access key signed the request.
        region: The one that the client believes this to be.
        prefix: The path of the facade.
        queue: The queue that the request's path names; blank: none.
    """

    request: Request
    call: Call
    application: str
    region: str
    prefix: str
    queue: str

    def read(self, kind: type[T]) -> T:
        """Returns the parameters. Raises SqsError: one is missing, or of another type."""
        return parameters(self.call, kind)

    def where(self, url: str) -> Match:
        """Returns the place of the queue that a URL names: its last part. Whose host and account it has says nothing.

        Raises:
            SqsError: None is named.
        """
        name = unquote(url.rpartition("/")[2]) or self.queue
        if not name:
            raise missing("QueueUrl")
        return self.place(name)

    def place(self, name: str) -> Match:
        return {"app": self.application, "queue": name}

    def url_of(self, name: str) -> str:
        """Returns the URL by which clients name a queue, and which some of them use for their next requests."""
        return f"{self.request.origin}{self.prefix}/{ACCOUNT}/{quote(name, safe='')}"
