"""A message as its producer gives it."""

from __future__ import annotations

import msgspec

from queuey.messages import Meta


class Draft(msgspec.Struct, gc=False):
    """A message as its producer gives it.

    Attributes:
        body: ``str`` for text, ``bytes`` for anything else. Never empty.
        partition: None: chosen, by ``key`` if there is one.
        ttl: Seconds; None: the queue's, or else the deployment's.
        key: Messages of one key go to one partition.
        delay: Seconds until it is due.
    """

    body: str | bytes
    ttl: int | None = None
    partition: int | None = None
    meta: Meta | None = None
    delay: float = 0.0
    key: str | None = None
