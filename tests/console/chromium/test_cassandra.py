"""The console of a real service on Cassandra, with two workers: jobs, dead letters and the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import cast

import pytest
import requests

from queuey.client import Client, Outgoing
from queuey.web.parts import App
from tests.acceptance.sqs.conftest import command
from tests.console.acting import act, follow_redirect
from tests.console.browser import Browser
from tests.contract.samples import eventually
from tests.servers import keyspaces
from tests.servers.plugin import Cassandra
from tests.servers.served import Served
from tests.web.gateway_calls import Reply

A = "/console/a/queuey"


class HttpBrowser(Browser):
    """A browser that calls a service over HTTP, and follows no redirects."""

    def __init__(self, port: int) -> None:
        super().__init__(cast("App", None), f"localhost:{port}")

    def _send(self, method: str, path: str, body: bytes, query: str, headers: dict[str, str]) -> Reply:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        reply = requests.request(
            method,
            f"http://{self.host}{path}",
            params=query,
            data=body,
            headers={**({"cookie": cookie} if cookie else {}), **headers},
            allow_redirects=False,
            timeout=60,
        )
        for header in reply.raw.headers.getlist("set-cookie"):
            self._keep_cookie(header)
        return Reply(reply.status_code, list(reply.headers.items()), reply.content)


@pytest.fixture(scope="module")
def service(cassandra: Cassandra, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """Port of the service and key of its application. The service must log nothing that looks like a defect."""
    store = ["--store", keyspaces.make(cassandra)]
    command("app", "create", "queuey", *store)
    key = json.loads(command("app", "key-add", "queuey", "--json", *store))["secret"]
    with Served(tmp_path_factory.mktemp("console"), ["--console", "on", "--workers", "2", *store]) as served:
        yield served.port, key
        assert "Traceback" not in served.output


@pytest.fixture(scope="module")
def client(service: tuple[int, str]) -> Iterator[Client]:
    port, key = service
    with closing(Client(f"http://127.0.0.1:{port}", key=key, application="queuey")) as client:
        yield client


@pytest.fixture(scope="module")
def browser(service: tuple[int, str]) -> Browser:
    port, key = service
    browser = HttpBrowser(port)
    assert browser.log_in(key).status == 303
    return browser


def test_jobs(browser: Browser, client: Client) -> None:
    """A job that one worker of the service has given out is released at whichever worker is asked."""
    client.create_queue("jobs")
    client.send("jobs", "work")
    jobs = client.job_queue("jobs")
    for job in jobs.claim():
        message = job.message
        query = f"message={message.partition}:{message.id}"
        assert "Workers" in browser.get(f"{A}/jobs/jobs").text
        assert f"messages/{query[8:].replace(':', '%3A')}" in browser.get(f"{A}/jobs/jobs").text
        assert "another worker gets it" in follow_redirect(browser, act(browser, f"{A}/jobs/acts/release", query))
        again = next(jobs.claim())
        assert (again.message.id, again.deliveries) == (message.id, 2)
        again.ack()
        break


def test_dead_letters(browser: Browser, client: Client) -> None:
    """Dead letters go back, each once."""
    for name in ("failed", "failed.dead"):
        client.create_queue(name, partitions=2)
    said_of = {"queue": "failed", "id": "0" * 32, "attempts": "3", "error": "E", "at": "2026-01-01T00:00:00.000Z"}
    for partition in (1, 2):
        headers = {f"queuey-dead-{name}": text for name, text in (said_of | {"partition": str(partition)}).items()}
        client.send_many("failed.dead", [Outgoing("x", headers=headers, partition=partition)] * 3)
    address = f"{A}/failed.dead/acts/redrive"
    assert eventually(lambda: "among 6 messages in failed.dead: 6." in browser.get(address, query="error=E").text)
    assert "Sent back 6 to failed." in follow_redirect(browser, act(browser, address, "error=E"))
    assert eventually(lambda: client.info("failed").count == 6)
    assert client.info("failed.dead").count == 0


def test_the_audit_log(browser: Browser, client: Client) -> None:
    """Every act is in the log once its outcome is certain, and is still there after a restart."""
    client.create_queue("logged")
    reply = act(browser, f"{A}/logged/acts/send", body="x")
    assert "Stored message" in follow_redirect(browser, reply)
    assert eventually(lambda: "logged" in browser.get(f"{A}/_audit").text)


def is_on(browser: Browser, address: str, words: str) -> bool:
    return words in browser.get(address).text


def test_the_pages_of_a_queue(browser: Browser, client: Client) -> None:
    """Every page of a queue with jobs, a group and dead letters shows the same as on SQLite, on either worker."""
    for name in ("paged", "paged.dead"):
        client.create_queue(name, partitions=3)
    receipts = client.send_many("paged", [Outgoing(json={"task": "thumb", "args": [n]}) for n in range(9)])
    client.commit("paged", "statistics", {receipt.partition: receipt.id for receipt in receipts})
    assert eventually(lambda: len(client.job_queue("paged").receive(1, ttl=600)) == 1)
    for page, words in (
        ("", 'data-tile="claimed">1<'),
        ("/jobs", "<bdi>thumb</bdi>"),
        ("/groups", "<bdi>statistics</bdi>"),
        ("/dead", "No dead letters."),
        ("/options", "Danger zone"),
        ("/messages", 'aria-label="Pages of the queue"'),
    ):
        for _ in range(4):
            assert eventually(partial(is_on, browser, f"{A}/paged{page}", words))
    assert "not known yet" not in browser.get(f"{A}/paged/jobs").text
