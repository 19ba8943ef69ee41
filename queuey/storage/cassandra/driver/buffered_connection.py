"""Connections of cassandra-driver for long bodies: they are not refused while one is being sent."""

from __future__ import annotations

from typing import Any

from cassandra.cluster import Cluster

from queuey.storage.cassandra.driver.fast_request import MOST_WAITING


class BufferedConnection(Cluster.connection_class):  # type: ignore[misc] # the driver ships no types
    """A connection that sends a request as one piece and receives in larger ones."""

    in_buffer_size = 1 << 16
    out_buffer_size = 1 << 22
    _takes_all = True

    @property
    def _socket_writable(self) -> bool:
        """Requests may wait, up to a limit.

        The driver refuses all while the socket accepts no bytes, which is so for a moment after each long body.
        """
        return self._takes_all or self._waiting() < MOST_WAITING

    @_socket_writable.setter
    def _socket_writable(self, value: bool) -> None:
        self._takes_all = value

    def handle_write(self, *event: Any) -> Any:  # noqa: ANN401 - the event loop's
        """Notes when all is sent, which the driver only does if it refused requests."""
        sent = super().handle_write(*event)
        if not self._takes_all and not self._waiting():
            self._takes_all = True
        return sent

    def _waiting(self) -> int:
        with self._deque_lock:
            return sum(map(len, self.deque))
