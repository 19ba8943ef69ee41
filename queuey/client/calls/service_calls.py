"""Calls about the service itself. They stand beside the API, not below an application."""

from __future__ import annotations

from typing import Any

from queuey.api.queues import Hello
from queuey.client.calls.call import Call, nothing, reads


def heartbeat() -> Call[None]:
    return Call("GET", "/__heartbeat__", nothing, repeatable=True)


def hello() -> Call[Hello]:
    return Call("GET", "/v1/", reads(Hello), repeatable=True)


def version() -> Call[dict[str, Any]]:
    return Call("GET", "/__version__", reads(dict[str, Any]), repeatable=True)
