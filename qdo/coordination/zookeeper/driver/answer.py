"""What kazoo puts an answer into: a future without a lock, whose callbacks run where the answer is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError


class PendingAnswer:
    """The answer to one request. One thread puts it in, another may ask for callbacks at the same time.

    Only the first answer counts: kazoo gives two to a request that comes while it is being closed.

    Attributes:
        value: What was answered; None as well while there is nothing or an error.
        exception: The error.
    """

    __slots__ = ("_callbacks", "_ready", "exception", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: BaseException | None = None
        self._ready = False
        self._callbacks: list[Callable[[PendingAnswer], object]] = []

    def set(self, value: Any = None) -> None:  # noqa: ANN401 - of any request
        """Puts it in."""
        self._finish(value, None)

    def set_exception(self, exception: BaseException) -> None:
        """Puts an error in."""
        self._finish(None, exception)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002, FBT001, FBT002 - kazoo's signature
        """Returns it, or raises the error; nobody may wait for it."""
        if not self._ready:
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[PendingAnswer], object]) -> None:
        """Calls back when it is there, or at once."""
        self._callbacks.append(callback)
        if self._ready:
            self._call()

    def _finish(self, value: Any, exception: BaseException | None) -> None:  # noqa: ANN401 - of any request
        if self._ready:
            return
        self.value, self.exception = value, exception
        self._ready = True
        self._call()

    def _call(self) -> None:
        """Calls each callback once, though both threads may be here: taking one from the list is one step."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)
