"""Answers that are not known yet, for a server that handles many requests in one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuey.errors import Outcome
from queuey.web.answers import Answer

Done = Callable[[Any, Exception | None], None]
"""Takes a result or an error; called once, from any thread."""
Begin = Callable[[Done], Callable[[], Outcome]]
"""Starts some work, given whom to tell of its end; returns the function that gives up, whose answer is the outcome."""


PLACE = "queuey.place"
"""Set in the environ of a long poll by a server that gives out places to wait at: whether this one has got one."""


class WouldBlock(Exception):
    """The request has to be handled in a thread that may block. Nothing has been done."""


class Later:
    """What stands for an answer until it is known.

    Attributes:
        begin: Starts the work.
        finish: Makes the answer of the work's result or error. Raises :class:`WouldBlock` when the request has to be
            handled anew, in a thread.
    """

    __slots__ = ("begin", "finish")

    def __init__(self, begin: Begin, finish: Callable[[Any, Exception | None], Answer]) -> None:
        self.begin = begin
        self.finish = finish
