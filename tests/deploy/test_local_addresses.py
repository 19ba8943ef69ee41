"""Each cluster on one machine gets its own addresses."""

from __future__ import annotations

import ipaddress
import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local import addresses
from deploy.local.addresses import BLOCKS, Block, claim
from deploy.local.errors import NoFreeAddress

WANTED_PORTS = [(0, 9042), (1, 9042), (2, 9042)]
NUMBERS = st.integers(0, BLOCKS - 1)
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")


def blocks() -> list[tuple[int, int]]:
    with claim(WANTED_PORTS) as first, claim(WANTED_PORTS) as second:
        return [(first.number, first.shift), (second.number, second.shift)]


def occupants(block: Block) -> set[tuple[str, int]]:
    own = {(block.address(index), block.port(port)) for index in range(3) for port in (2181, 7000, 9042)}
    return own | {("127.0.0.1", block.jmx_port(index)) for index in range(3)}


@given(NUMBERS, NUMBERS)
def test_blocks_do_not_meet(first: int, second: int) -> None:
    """Different blocks share no address and port; all addresses are loopback addresses of hosts."""
    with socket.socket() as guard:
        one, two = occupants(Block(first, 0, guard)), occupants(Block(second, 0, guard))
    assert len(one) == 12
    assert one.isdisjoint(two) == (first != second)
    assert all(ipaddress.ip_address(address).is_loopback for address, _ in one)


@linux
def test_a_taken_port_leads_to_the_next_block() -> None:
    """A block on which a server already listens is skipped."""
    first, second = blocks()
    with socket.socket() as busy:
        busy.bind((addresses.list_addresses(first[0])[1], 9042 + first[1]))
        busy.listen()
        with claim(WANTED_PORTS, [first, second]) as block:
            assert (block.number, block.shift) == second


@linux
def test_a_claimed_block_is_not_claimed_again() -> None:
    """A block belongs to one cluster until that releases it, even before its servers listen."""
    first, second = blocks()
    with claim(WANTED_PORTS, [first]):
        with claim(WANTED_PORTS, [first, second]) as other:
            assert (other.number, other.shift) == second
        with pytest.raises(NoFreeAddress, match="Other servers"):
            claim(WANTED_PORTS, [first])
    claim(WANTED_PORTS, [first]).release()


@linux
def test_a_port_taken_everywhere_leads_to_other_ports() -> None:
    """If a program listens on a port of all addresses, servers get other ports."""
    (number, _), _ = blocks()
    with socket.socket() as busy:
        busy.bind(("0.0.0.0", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with claim([(0, port)], [(number, 0), (number, -1)]) as block:
            assert block.port(port) == port - 1
