"""A connection to a server as kazoo wants a socket, read in large pieces and overheard for signs of life.

Kazoo reads an answer in two small pieces and asks the operating system before each whether there is something. Here
whatever has arrived is taken at once and handed out from memory, which makes a thousand answers several times cheaper.
It also does away with two traps of TLS: records that the encryption has read ahead, of which the operating system
knows nothing, and records without data, after which kazoo would wait inside of an answer that is not there.
"""

from __future__ import annotations

import socket
import ssl
import struct

from qdo.coordination.zookeeper.lease import SessionLease

PIECE = 65_536
GREETING = struct.Struct(">iii")
"""What a server's first packet begins with: its length, the protocol's version, the timeout granted in ms."""


class Wire:
    """A connection, used by one thread.

    Args:
        connection: Connected, and encrypted if it shall be.
        lease: Told when the server grants a session and whenever it is heard.
    """

    def __init__(self, connection: socket.socket, lease: SessionLease) -> None:
        self._connection = connection
        self._lease = lease
        self._data = b""
        self._at = 0
        self._ended = False
        self._head = b""
        self.fileno = connection.fileno
        self.setblocking = connection.setblocking
        self.getpeername = connection.getpeername
        self.close = connection.close
        self.send = connection.send

    def greeted(self) -> bool:
        """Tells whether the server has answered on this connection."""
        return len(self._head) >= GREETING.size

    def pending(self) -> int:
        """Returns how many bytes can be had without asking the operating system."""
        return len(self._data) - self._at

    def fill(self) -> bool:
        """Takes what has arrived; to be called when nothing is pending and the operating system has something.

        Returns:
            There is something to receive: data or the end.

        Raises:
            OSError: The connection is broken.
        """
        try:
            data = self._connection.recv(PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLEOFError:
            data = b""
        self._data, self._at = data, 0
        self._ended = not data
        if data:
            self._overhear(data)
        return True

    def recv(self, most: int) -> bytes:
        """Returns up to so many bytes, none at the end.

        Raises:
            OSError: The connection is broken.
            ssl.SSLWantReadError: There is nothing yet; what kazoo understands, with and without TLS.
        """
        if not self.pending() and not self._ended and not self.fill():
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing has arrived")
        data = self._data[self._at : self._at + most]
        self._at += len(data)
        return data

    def _overhear(self, data: bytes) -> None:
        if self.greeted():
            self._lease.hear()
            return
        self._head += data[: GREETING.size]
        if self.greeted():
            _, _, timeout = GREETING.unpack(self._head[: GREETING.size])
            if timeout > 0:
                self._lease.grant(timeout / 1000)
                self._lease.hear()
