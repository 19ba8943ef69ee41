"""Handlers that do nothing: what a worker costs is all that is left."""

from __future__ import annotations

from queuey.client import Message


def plain(message: Message, context: object) -> None:
    """Handles a message."""


async def awaited(message: Message, context: object) -> None:
    """Handles a message in the worker's loop."""
