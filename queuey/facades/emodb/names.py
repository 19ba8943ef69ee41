"""Names of queues: as callers of this API have them, and as the application's queues have them.

The two kinds of queues of one name are apart: the dedup queue ``q`` is the application's queue ``q~dedup``. A name that
begins with two underscores gets a ``~`` in front, because the application's queues do not begin with an underscore. No
name of a caller has a ``~``, so each one stands for a queue of its own.
"""

from __future__ import annotations

import re
from typing import Literal

from queuey.facades.emodb.errors import BadArgument

Kind = Literal["plain", "dedup"]
"""Of queue, as the application's queues have it."""

MAX_NAME = 255
"""Max characters of a caller's name for a queue."""
_DEDUP = "~dedup"
_SYSTEM = "~"
LONGEST_QUEUE = len(_SYSTEM) + MAX_NAME + len(_DEDUP)
"""Characters of the name that the application's queue has."""

_NAME = re.compile(rf"(?!_(?!_))(?!\.{{1,2}}$)[a-z0-9.:@_-]{{1,{MAX_NAME}}}", re.ASCII)


def queue_name(name: str, kind: Kind) -> str:
    """Returns the name of the application's queue.

    Raises:
        BadArgument: ``name`` is none that a queue can have.
    """
    if _NAME.fullmatch(name) is None:
        raise BadArgument(
            f"Queue name must be a lowercase ASCII string between 1 and {MAX_NAME} characters in length. "
            "Allowed punctuation is - . : @ and _ ; a name begins with no underscore or with two, and is not . or .."
        )
    return f"{_SYSTEM if name[0] == '_' else ''}{name}{_DEDUP if kind == 'dedup' else ''}"


def is_of(queue: str, kind: Kind) -> bool:
    """Returns whether the name of an application's queue is that of a caller's queue of this kind."""
    return queue.endswith(_DEDUP) == (kind == "dedup")


def shown_name(queue: str) -> str:
    return queue.removeprefix(_SYSTEM).removesuffix(_DEDUP)
