"""Credentials and encryption, on a server that requires both."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from deploy.local.addresses import claim
from qdo.errors import CoordinationLost, CoordinationRefused
from qdo.group.opening import open_coordinator
from qdo.group.records import Member
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.link import ZooKeeperLink
from qdo.group.zookeeper.session import ZooKeeperSession
from tests.qdo.contract.events import RecordedEvents
from tests.qdo.contract.samples import PARTITION, first_partitions
from tests.qdo.contract.zookeeper import client_of, socket_of
from tests.replacing import replace
from tests.servers.plugin import ZooKeeperOptions, start_zookeeper, unique_name

Open = Callable[..., Awaitable[ZooKeeperCoordinator]]

PORTS = [(0, port) for port in (2181, 2281, 2888, 3888)]
JAAS = """Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_sally="of the %servers%";
};
"""
SALLY = "sally:of%20the%20%25servers%25"


@dataclass(frozen=True)
class Guarded:
    """A server with an encrypted port and SASL.

    Attributes:
        plain: The address and port without encryption.
        secure: The address and port with encryption.
        ca: The certificate of its authority.
        stranger: The certificate of another authority.
    """

    plain: str
    secure: str
    ca: Path
    stranger: Path


def certificate(directory: Path, name: str, address: str) -> Path:
    key, cert, both = (directory / f"{name}-{part}.pem" for part in ("key", "cert", "both"))
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {key} -out {cert}"
    subprocess.run(shlex.split(f"{command} -addext subjectAltName=IP:{address}"), check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return both


@pytest.fixture(scope="module")
def guarded(servers: contextlib.ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Starts the server, which accepts client certificates of its own authority only."""
    directory = tmp_path_factory.mktemp("guarded")
    block = claim(PORTS)
    address, port, secure = block.address(0), block.port(2181), block.port(2281)
    own = certificate(directory, "server", address)
    certificate(directory, "stranger", address)
    jaas = directory / "jaas.conf"
    jaas.write_text(JAAS)
    options = ZooKeeperOptions(
        settings={
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": secure,
            "secureClientPortAddress": address,
            "ssl.keyStore.type": "PEM",
            "ssl.keyStore.location": str(own),
            "ssl.trustStore.type": "PEM",
            "ssl.trustStore.location": str(directory / "server-cert.pem"),
            "ssl.clientAuth": "want",
        },
        jvm_options=(f"-Djava.security.auth.login.config={jaas}",),
    )
    with start_zookeeper(1, options, block=block):
        yield Guarded(
            f"{address}:{port}", f"{address}:{secure}", directory / "server-cert.pem", directory / "stranger-cert.pem"
        )


@pytest.fixture
async def open_one() -> AsyncIterator[Open]:
    async with contextlib.AsyncExitStack() as opened:

        async def open_one(url: str, group: str = "group") -> ZooKeeperCoordinator:
            coordinator = open_coordinator(url, group, connect_timeout=10.0)
            opened.push_async_callback(coordinator.close)
            await coordinator.open()
            return coordinator

        yield open_one


async def check_session(coordinator: ZooKeeperCoordinator) -> ZooKeeperSession:
    session = await coordinator.join(Member("a"), RecordedEvents())
    partitions = first_partitions(200)
    held = await session.claim(partitions)
    assert len(held) == 200
    assert all((await session.commit([(each, "1") for each in held.values()])).values())
    assert len(await coordinator.owners()) == len(await coordinator.offsets()) == 200
    return session


async def refuses(open_one: Open, url: str) -> None:
    """Checks that nothing of the group can be seen or changed, even without the check of the chroot."""
    with pytest.raises(CoordinationRefused):
        await open_one(url)
    with replace(ZooKeeperLink.stat, mock.AsyncMock()):
        coordinator = await open_one(url)
    for call in (
        coordinator.members,
        coordinator.owners,
        coordinator.offsets,
        lambda: coordinator.set_offsets({PARTITION: "9"}),
        coordinator.forget,
        lambda: coordinator.join(Member("b"), RecordedEvents()),
    ):
        with pytest.raises(CoordinationRefused):
            await call()


async def test_strangers_see_and_change_nothing(guarded: Guarded, open_one: Open) -> None:
    """Nodes of a member with a login are closed to clients without one, and with another one; its own login works."""
    root = unique_name("qdo")
    url = f"zookeeper://me:secret@{guarded.plain}/{root}"
    await (await check_session(await open_one(url))).leave()
    for login in ("", "me:guess@", "you:secret@"):
        await refuses(open_one, f"zookeeper://{login}{guarded.plain}/{root}")
    again = await open_one(url)
    assert (await again.offsets([PARTITION]))[PARTITION].id == "1"
    await again.forget()


async def test_without_a_login_nothing_is_closed(guarded: Guarded, open_one: Open) -> None:
    """Without a login, or with one and ``private=no``, groups are open to everybody with the address."""
    for login in ("", "me:secret@"):
        url = f"zookeeper://{login}{guarded.plain}/{unique_name('qdo')}"
        await check_session(await open_one(f"{url}?private=no"))
        assert len(await (await open_one(url.replace(login, ""))).owners()) == 200


async def test_sasl(guarded: Guarded, open_one: Open) -> None:
    """With SASL the servers know the member, also after a reconnect, and close its nodes to others."""
    root = unique_name("qdo")
    coordinator = await open_one(f"zookeeper://{SALLY}@{guarded.plain}/{root}?login=sasl")
    heard = RecordedEvents()
    session = await coordinator.join(Member("a"), heard)
    held = (await session.claim([PARTITION]))[PARTITION]
    with socket.socket(fileno=os.dup(socket_of(client_of(session)).fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
    await heard.next("connected")
    assert (await session.commit([(held, "1")]))[PARTITION]
    await refuses(open_one, f"zookeeper://{guarded.plain}/{root}")
    await refuses(open_one, f"zookeeper://{SALLY}@{guarded.plain}/{root}")


async def test_sasl_refuses_who_does_not_know_the_password(guarded: Guarded, open_one: Open) -> None:
    """A wrong SASL password is reported at once, and not retried until the timeout."""
    with pytest.raises(CoordinationRefused):
        await open_one(f"zookeeper://sally:guess@{guarded.plain}/x?login=sasl")


async def test_tls(guarded: Guarded, open_one: Open) -> None:
    """An encrypted connection works as any other, with and without a certificate of the member's own."""
    url = f"zookeeper://{guarded.secure}/{unique_name('qdo')}"
    await (await check_session(await open_one(f"{url}?ca={guarded.ca}"))).leave()
    both = guarded.ca.with_name("server-both.pem")
    await check_session(await open_one(f"{url}?ca={guarded.ca}&cert={both}"))
    assert len(await (await open_one(f"{url}?ca={guarded.ca}&cert={guarded.ca}&key={both}")).owners()) == 200


async def test_tls_by_way_of_the_process_that_keeps_the_session(guarded: Guarded) -> None:
    """With TLS the helper process that keeps the session talks to the server."""
    both = guarded.ca.with_name("server-both.pem")
    url = f"zookeeper://{guarded.secure}/{unique_name('qdo')}?ca={guarded.ca}&cert={both}"
    coordinator = open_coordinator(url, "group")
    coordinator.outlast = 60.0
    await coordinator.open()
    await (await check_session(coordinator)).leave()
    await coordinator.close()


@pytest.mark.parametrize("max_blocked_seconds", [0.0, 60.0])
async def test_a_server_that_nobody_vouches_for_is_not_trusted(guarded: Guarded, max_blocked_seconds: float) -> None:
    """A server with an unknown authority is refused, and the error names the reason."""
    for ca in (f"ca={guarded.stranger}", "tls=yes"):
        coordinator = open_coordinator(f"zookeeper://{guarded.secure}?{ca}", "group", connect_timeout=2.0)
        coordinator.outlast = max_blocked_seconds
        with pytest.raises(CoordinationLost, match="certificate"):
            await coordinator.open()
        await coordinator.close()


async def test_a_server_by_another_name_is_not_trusted(guarded: Guarded) -> None:
    """A certificate for another host is refused, unless the check of the name is switched off."""
    port = guarded.secure.rpartition(":")[2]
    with mock.patch("socket.getaddrinfo", resolve(guarded.secure.rpartition(":")[0])):
        url = f"zookeeper://queuey.test:{port}?ca={guarded.ca}"
        coordinator = open_coordinator(url, "group", connect_timeout=1.0)
        with pytest.raises(CoordinationLost, match="queuey"):
            await coordinator.open()
        await coordinator.close()
        careless = open_coordinator(url, "group", check_hostname=False)
        await careless.open()
        await careless.close()


def resolve(address: str) -> Callable[..., object]:
    """Returns a resolver that knows one name, and asks the real one for others."""
    real = socket.getaddrinfo

    def ask(host: str, *rest: object, **more: object) -> object:
        return real(address if host == "queuey.test" else host, *rest, **more)  # type: ignore[arg-type]

    return ask
