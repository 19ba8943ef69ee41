"""Addresses for servers, so that clusters on one machine do not meet.

Cassandra's nodes share their ports and differ by address. So a cluster gets a block: eight loopback addresses and a
few ports of 127.0.0.1 for JMX. Linux answers on all of 127.0.0.0/8; macOS only on 127.0.0.1 until aliases are added
(``sudo ifconfig lo0 alias 127.0.0.2 up``), so there everything runs at block 0.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from types import TracebackType
from typing import Self

from deploy.local.errors import NoFreeAddress

BLOCKS = 2000
PER_BLOCK = 8
"""Addresses of a block: for up to four servers, and for a proxy before each of them."""
GUARD_PORT = 7198
"""Port on a block's first address that is bound while the block is taken. It is free when the process ends."""
JMX_PORTS = 20_000
"""The first port that blocks take for JMX; below those that the kernel gives to clients by itself."""
JMX_PER_BLOCK = 4
SHIFTS = (0, 10_000)
"""Added to every port. The second is for machines where something listens on a port on all addresses."""
TRIES = 64


def list_addresses(number: int) -> tuple[str, ...]:
    """Returns the addresses of a block; block 0 is 127.0.0.1 to 127.0.0.8."""
    high, low = divmod(number, 250)
    prefix = f"127.{100 + high}.{low}" if number else "127.0.0"
    return tuple(f"{prefix}.{1 + index}" for index in range(PER_BLOCK))


def is_free(address: str, port: int) -> bool:
    """Returns whether a server could listen there now.

    Raises:
        NoFreeAddress: This machine does not have the address.
    """
    with socket.socket() as probe:
        # As servers do: a port with connections that are only fading away is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise NoFreeAddress(
                    f"{address} is not an address of this machine. Where only 127.0.0.1 is, as on macOS, "
                    "add the others, each by sudo ifconfig lo0 alias 127.0.0.2 up, or start one node."
                ) from error
            return False
        return True


@dataclass(frozen=True)
class Block:
    """Loopback addresses and the ports on them, taken until :meth:`release`."""

    number: int
    shift: int
    guard: socket.socket = field(repr=False)

    def address(self, index: int) -> str:
        return list_addresses(self.number)[index]

    def port(self, usual: int) -> int:
        """Returns the port to use in place of a server's usual one."""
        return usual + self.shift

    def jmx_port(self, index: int) -> int:
        """Returns a node's port for JMX, which listens on 127.0.0.1 whatever the node's address is."""
        return _jmx_port(self.number, index)

    def release(self) -> None:
        self.guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def list_candidates() -> Iterable[tuple[int, int]]:
    """Returns the blocks to try, as number and shift; each process begins at another one.

    On other systems than Linux, only block 0 is tried.
    """
    if sys.platform != "linux":
        return ((0, shift) for shift in SHIFTS)
    first = os.getpid() * 7
    numbers = [1 + (first + step) % (BLOCKS - 1) for step in range(TRIES)]
    return ((number, shift) for shift, number in product(SHIFTS, numbers))


def claim(ports: Sequence[tuple[int, int]], candidate_blocks: Iterable[tuple[int, int]] | None = None) -> Block:
    """Takes the first block whose ports are all free.

    Args:
        ports: The ports that will be listened on: the address's index and the usual port.
        candidate_blocks: Blocks to try, as number and shift; :func:`list_candidates` by default. At most ``2 * TRIES``
            are tried.

    Raises:
        NoFreeAddress: No block is free.
    """
    taken = ""
    for number, shift in islice(list_candidates() if candidate_blocks is None else candidate_blocks, 2 * TRIES):
        try:
            return _claim_block(number, shift, ports)
        except NoFreeAddress as refused:
            taken = str(refused)
    raise NoFreeAddress(taken or "No block of addresses was offered.")


def _claim_block(number: int, shift: int, wanted: Sequence[tuple[int, int]]) -> Block:
    """Takes a block by its guard port. Raises NoFreeAddress if that or another needed port is not free."""
    guard = socket.socket()
    try:
        guard.bind((list_addresses(number)[0], GUARD_PORT + shift))
    except OSError as error:
        guard.close()
        raise NoFreeAddress(f"Other servers have the addresses from {list_addresses(number)[0]} on.") from error
    nodes = 1 + max((index for index, _ in wanted), default=0)
    places = [(list_addresses(number)[index], port + shift) for index, port in wanted]
    places += [("127.0.0.1", _jmx_port(number, index)) for index in range(min(nodes, JMX_PER_BLOCK))]
    block = Block(number, shift, guard)
    try:
        _require_free(places)
    except NoFreeAddress:
        block.release()
        raise
    return block


def _require_free(places: Iterable[tuple[str, int]]) -> None:
    for address, port in places:
        if not is_free(address, port):
            raise NoFreeAddress(f"{address}:{port} is taken.")


def _jmx_port(number: int, index: int) -> int:
    return JMX_PORTS + JMX_PER_BLOCK * number + index if number else 7199 + 100 * index
