"""Moves between queues that a program has begun: wait for the end, or cancel."""

from __future__ import annotations

from collections.abc import Callable

from queuey.api.progress import Move
from queuey.client._sync.send_call import SendCall
from queuey.client.calls import move_calls
from queuey.client.calls.call import Seconds, seconds
from queuey.client.errors import AnswerTimeout
from queuey.client.http.attempts import Timing

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Min and max seconds between two requests that ask for the progress."""

Progress = Callable[[Move], object]
"""Called with the progress of the move after each request."""


class Moving:
    """A move of messages from one queue to another. It goes on without this program.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     _ = client.create_queue("old-orders")
        ...     moving = client.move("orders", "old-orders")
        ...     move = moving.wait()
        ...     print(move.state, move.moved)
        done 2

    Attributes:
        id: Identifies the move: ``client.moving(id)`` returns this object again, in any program.
    """

    def __init__(self, identifier: str, send: SendCall, timing: Timing) -> None:
        self.id = identifier
        self._send = send
        self._timing = timing

    def show(self) -> Move:
        """Returns the progress of the move."""
        return self._send(move_calls.show(self.id))

    def cancel(self) -> Move:
        """Ends the move soon; messages that have been moved stay in the target. An ended move stays as it is."""
        return self._send(move_calls.cancel(self.id))

    def wait(self, timeout: Seconds | None = None, *, told: Progress | None = None) -> Move:
        """Waits for the end and returns the move, whose state is ``done``, ``cancelled`` or ``failed`` then.

        Args:
            timeout: Max seconds to wait; None: as long as it takes.
            told: Called with the progress, about once a second.

        Raises:
            AnswerTimeout: It has not ended in time, and goes on.
        """
        clock = self._timing.clock
        end = None if timeout is None else clock() + seconds(timeout)
        pause = FIRST_PAUSE
        while True:
            move = self.show()
            if told is not None:
                told(move)
            if move.ended is not None:
                return move
            now = clock()
            if end is not None and now >= end:
                raise AnswerTimeout(f"move {self.id} has not ended in time; it goes on")
            self._timing.sleep(pause if end is None else min(pause, end - now))
            pause = min(2 * pause, LONGEST_PAUSE)
