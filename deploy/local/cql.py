"""Queries a Cassandra node in the native protocol, version 4, without a driver.

Shows whether a node serves clients and sees the other nodes, before a driver connects.
"""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Self

VERSION = 4
ERROR, STARTUP, READY, AUTHENTICATE, QUERY, RESULT, AUTH_RESPONSE, AUTH_SUCCESS = 0x00, 1, 2, 3, 7, 8, 0x0F, 0x10
HEADER = struct.Struct("!BBhBi")
ONE, ALL = 1, 5
SUPERUSER = ("cassandra", "cassandra")
"""Name and password of the only user of a new cluster with authentication."""


class Refused(OSError):
    """The node answered with an error, or with something unexpected."""


class Conversation:
    """An open connection, which is logged in if the node requires it.

    Args:
        address: Address of the node.
        port: Port for clients.
        tls: Context for encryption; None for no encryption.
        user: Name and password, used if the node requires them.
        seconds: Timeout of each answer.

    Raises:
        OSError: The node cannot be reached, or refuses the connection.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        user: tuple[str, str] = SUPERUSER,
        seconds: float = 1.0,
    ) -> None:
        plain = socket.create_connection((address, port), seconds)
        try:
            self._socket = tls.wrap_socket(plain, server_hostname=address) if tls else plain
            self._stream = self._socket.makefile("rb")
        except BaseException:
            plain.close()
            raise
        try:
            self._log_in(user)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def query(self, statement: str, consistency: int = ONE) -> None:
        """Runs a statement and drops its result.

        Raises:
            OSError: The statement failed, or the answer took too long.
        """
        text = statement.encode()
        opcode, body = self._send_request(QUERY, struct.pack(f"!i{len(text)}sHB", len(text), text, consistency, 0))
        if opcode != RESULT:
            raise _make_refusal(opcode, body)

    def _log_in(self, user: tuple[str, str]) -> None:
        opcode, body = self._send_request(STARTUP, struct.pack("!H", 1) + _string("CQL_VERSION") + _string("3.0.0"))
        if opcode == AUTHENTICATE:
            token = "\0".join(("", *user)).encode()
            opcode, body = self._send_request(AUTH_RESPONSE, struct.pack("!i", len(token)) + token)
        if opcode not in {READY, AUTH_SUCCESS}:
            raise _make_refusal(opcode, body)

    def _send_request(self, opcode: int, body: bytes) -> tuple[int, bytes]:
        self._socket.sendall(HEADER.pack(VERSION, 0, 0, opcode, len(body)) + body)
        header = self._stream.read(HEADER.size)
        if len(header) < HEADER.size:
            raise Refused("The node closed the connection.")
        _, _, _, answered, length = HEADER.unpack(header)
        return answered, self._stream.read(length)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _string(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode()


def _make_refusal(opcode: int, body: bytes) -> Refused:
    return Refused(
        body[6:].decode("utf-8", "replace") if opcode == ERROR else f"The node answered with opcode {opcode}."
    )
