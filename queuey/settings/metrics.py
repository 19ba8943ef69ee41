"""The setting ``metrics``: what operators see of the service without a credential."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta


class PublishedMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The series that ``/metrics`` publishes."""

    publish: Annotated[bool, Meta(description="Serve Prometheus metrics at `/metrics`.")] = True
    backlog: Annotated[
        str,
        Meta(
            description="Queues whose job backlog is published: patterns such as `acme/thumb*`, separated by spaces. "
            "Max 100 queues. Everybody who reaches `/metrics` sees their names.",
            extra={"default": "none"},
        ),
    ] = ""

    @property
    def patterns(self) -> list[tuple[str, str]]:
        """Returns each application with the patterns of its queues."""
        pairs = (text.partition("/") for text in self.backlog.split())
        return [(application, pattern) for application, _, pattern in pairs]

    def mistakes(self) -> Iterator[str]:
        for text in self.backlog.split():
            application, _, pattern = text.partition("/")
            if not application or not pattern or "*" in application:
                yield f"backlog={text}: a pattern is application/queue, in which * stands for any text of the queue"
