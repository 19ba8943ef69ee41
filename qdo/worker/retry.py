"""Whether a failed message is tried again, and after how long. Pure: nothing here sleeps or looks at a clock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

from qdo.checked_settings import CheckedSettings
from qdo.errors import InvalidArgument

_MOST_DOUBLINGS = 1000
_YEAR = 31_536_000


class Retry(CheckedSettings, frozen=True, kw_only=True):
    """Exponential backoff with full jitter.

    The pause after the first attempt is drawn evenly from 0 to ``base``, after the second from 0 to twice that, and so
    on up to ``cap``. So workers that failed together, because a service was down, do not retry all at the same moment.

    Example:
        >>> from qdo import Retry
        >>> retry = Retry(attempts=3, base=1.0, never=("ValueError",))
        >>> [retry.longest(attempt) for attempt in (1, 2, 3)]
        [1.0, 2.0, 4.0]
        >>> retry.after(3, {"TimeoutError"}, draw=0.5) is None
        True

    Attributes:
        attempts: How often a message is tried; 0: without end.
        base: Seconds.
        cap: Seconds.
        never: Names of error classes, with or without their module, for which another attempt is no use; their
            subclasses count too.
    """

    attempts: Annotated[int, Meta(ge=0)] = 5
    base: Annotated[float, Meta(ge=0)] = 0.5
    cap: Annotated[float, Meta(ge=0, le=_YEAR)] = 60.0
    never: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what is no pause and no count.

        Raises:
            InvalidArgument
        """
        super().__post_init__()
        if self.base > self.cap:
            raise InvalidArgument(f"base, {self.base:g} s, is at most cap, {self.cap:g} s")

    def after(self, attempt: int, kinds: Collection[str], draw: float) -> float | None:
        """Returns the seconds until the next attempt; None: there is none.

        Args:
            attempt: How many there have been.
            kinds: Names of the class of the error and of its bases.
            draw: A random number from 0 to 1.
        """
        if (self.attempts and attempt >= self.attempts) or any(name in kinds for name in self.never):
            return None
        return draw * self.longest(attempt)

    def longest(self, attempt: int) -> float:
        """Returns the most seconds that the pause after an attempt may take."""
        return min(self.cap, self.base * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS))
