"""Users of a service in its own process: valid and invalid tokens over HTTP."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from queuey.client import Client
from queuey.user_queues import queue_name, user_name
from tests.servers.served import Served
from tests.waiting import until
from tests.web.users.issuer import AUDIENCE, Issuer, KeyServer, serving

PATTERN = "inbox-{user}"
HANGING = "https://slow.example.org"


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    """The issuer that the application trusts."""
    return Issuer()


@pytest.fixture(scope="module")
def slow() -> Iterator[KeyServer]:
    """Serves the keys of an issuer that never answers."""
    with serving(b"") as server:
        server.behaviour = "hang"
        yield server


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer, slow: KeyServer) -> Iterator[Served]:
    """A service whose application has users of two issuers."""
    with serving(issuer.make_key_set()) as keys:
        usual = {"audience": AUDIENCE, "queues": {PATTERN: ["read", "delete"]}}
        users = [usual | {"issuer": issuer.name, "keys": keys.url}, usual | {"issuer": HANGING, "keys": slow.url}]
        options = ["--users", json.dumps({"queuey": users}), "--log-level", "debug"]
        with Served(tmp_path_factory.mktemp("users"), options) as served:
            until(lambda: ask(served, "none", f"Bearer {issuer.token('ann')}")[0] != 503)  # The keys are loaded.
            yield served


@pytest.fixture
def owner(service: Served) -> Iterator[Client]:
    with service.client() as client:
        yield client


def inbox(issuer: str, user: str) -> str:
    return queue_name(PATTERN, user_name(issuer, user))


def ask(service: Served, queue: str, credential: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    try:
        connection.request("GET", f"/v1/queuey/{queue}", headers={"Authorization": credential})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_an_issuer_that_hangs_holds_nobody_else_up(service: Served, owner: Client, issuer: Issuer) -> None:
    """While many of its users ask, all others are answered, those with credentials that are seen first among them."""
    queue = inbox(issuer.name, "ann")
    owner.create_queue(queue)
    theirs = Issuer(HANGING)

    def of_slow(number: int) -> int:
        return ask(service, queue, f"Bearer {theirs.token(f'user {number}')}")[0]

    def of_others(number: int) -> int:
        return ask(service, queue, f"Bearer {issuer.token('ann', jti=str(number))}")[0]

    with ThreadPoolExecutor(40) as pool:
        slow, others = pool.map(of_slow, range(100)), pool.map(of_others, range(100))
        assert set(others) == {200}
        assert owner.info(queue).name == queue
        assert set(slow) == {503}


def test_a_service_without_users_loads_nothing_for_them() -> None:
    """What checks tokens is imported where there are users."""
    program = (
        "import sys, queuey.web.gateway.serve, queuey.web.app\n"
        "assert not {'jwt', 'browserid', 'cryptography', 'httpx2', 'requests'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
