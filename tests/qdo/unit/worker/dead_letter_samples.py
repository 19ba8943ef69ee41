"""Messages for tests without a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdo.partitions import Partition, Queue
from queuey.client import Message

ORDERS = Queue("queuey.example.org", "acme", "orders")
FIRST = Partition(ORDERS, 1)


def message(number: int, body: Any = "text", headers: Mapping[str, str] | None = None) -> Message:  # noqa: ANN401 - any JSON value
    identifier = f"{number:08x}aaaa11f08000aaaaaaaaaaaa"
    return Message(identifier, "1795145194.2357460", 1, body, None, headers or {})
