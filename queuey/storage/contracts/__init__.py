"""The parts of the storage contract. :mod:`queuey.storage` has the rules that hold for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from queuey.errors import Outcome

Call = TypeVar("Call")


class Begun(ABC):
    """Calls that a store has in one form: with a callback for their end."""

    @abstractmethod
    def ended(self, begin: Callable[[Callable[[Any, Exception | None], None]], Callable[[], Outcome]]) -> Any:  # noqa: ANN401 - of the call
        """Waits for the end of a call, no longer than a call may take; returns its result.

        ``begin`` starts it, given the callback; it returns a function that gives up.

        Raises:
            StoreUnavailable: Its time is over, and it was given up; see ``outcome``.
            Exception: The error with which it ended.
        """


def never_waits(call: Call) -> Call:
    """Marks a call of the contract that waits for nothing, so that it needs no deadline (``deadlines.bounded``)."""
    marked: Any = call
    marked.never_waits = True
    return call
