"""Operations of a real service on SQLite, over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPMessage
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlencode

from bench.call_counts.callers import RUNS, TIMEOUT_SECONDS, WARM_RUNS, Caller, make_post
from bench.call_counts.profiled_service import PORT
from bench.call_counts.profiler import find_fewest
from bench.harness import Void
from bench.load import traffic
from bench.load.signing import AccessKey, Signer
from bench.started import service
from bench.started.processes import Process, start
from queuey.facades.settings import SqsFacade
from queuey.facades.sqs import access_keys
from queuey.settings import Settings
from queuey.storage import bridge
from tests.servers.served import free_port

POSTS, JOBS = "bench", "jobs"
"""The queue for posts, and a queue of 1,000 messages to read, claim and receive."""
BACKLOG_SECONDS = 2.1
"""Age of the claimed messages: a read of messages older than 2 s first looks up the lowest live one, by one call."""
SQS_PREFIX = "/sqs"
SQS_SETTINGS = f'[facades.sqs]\nprefix = "{SQS_PREFIX}"\n'
CONSOLE_PAGE = f"/console/a/{service.APPLICATION}/{JOBS}"
TOKEN = re.compile(r'name="form_token" value="([^"]*)"')


class Claims:
    """Claims of one message each; each claim acknowledges the previous message."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._receipts: list[str] = []

    def claim_next(self) -> None:
        path, kind = f"{service.BASE}/{JOBS}/claims?limit=1&ttl=600", {"Content-Type": "application/json"}
        request = traffic.request("POST", path, json.dumps({"acknowledge": self._receipts}), kind)
        body, _ = self._caller.ask(request, 200)
        self._receipts = [message["receipt"] for message in json.loads(body)["messages"]]


class ProfiledService:
    """A running service whose profiler counts on command; ``orders`` is the connection to it."""

    def __init__(self, server: Process, orders: Connection) -> None:
        self.port = server.port
        self._orders = orders

    def count(self, operation: Callable[[], object]) -> Counter[str]:
        """Returns the calls of a warm operation by file, from the run with the fewest files."""
        for _ in range(WARM_RUNS):
            operation()
        runs = []
        for _ in range(RUNS):
            self._order_profiler("end")  # Waits until the previous operation is over.
            self._order_profiler("begin")
            operation()
            runs.append(self._order_profiler("end"))
        return find_fewest(runs)

    def _order_profiler(self, text: str) -> Counter[str]:
        """Sends an order to the service's profiler; returns its answer. Raises Void after :data:`TIMEOUT_SECONDS`."""
        self._orders.send(text)
        if not self._orders.poll(TIMEOUT_SECONDS):
            raise Void("the profiler in the service did not answer in time")
        answer: Counter[str] = self._orders.recv()
        return answer


@contextlib.contextmanager
def serve_profiled(directory: Path, *options: str) -> Iterator[ProfiledService]:
    port = free_port()
    locations = ["--data", str(directory), "--profile", str(directory / "profile.toml"), "--port", str(port)]
    command = [sys.executable, "-m", "bench.call_counts.profiled_service", "serve", *locations, *options]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_SECONDS)
        environment = {PORT: str(listener.getsockname()[1])}
        with (
            start("queuey", command, port, directory, environment) as server,
            Connection(listener.accept()[0].detach()) as orders,
        ):
            yield ProfiledService(server, orders)


def count_requests(served: ProfiledService) -> dict[str, Counter[str]]:
    read = traffic.request("GET", f"{service.BASE}/{JOBS}?since=0&limit=100")
    time.sleep(BACKLOG_SECONDS)
    with contextlib.closing(Caller(served.port)) as caller:
        return {
            "POST": served.count(lambda: caller.ask(make_post(POSTS), 201)),
            "GET": served.count(lambda: caller.ask(read, 200)),
            "claim": served.count(Claims(caller).claim_next),
        }


def count_receive(served: ProfiledService, key: AccessKey) -> Counter[str]:
    signer = Signer(key, "ReceiveMessage", f"{SQS_PREFIX}/")
    receive = signer.request(f'{{"QueueUrl":"http://127.0.0.1/000000000000/{JOBS}"}}')
    with contextlib.closing(Caller(served.port)) as caller:
        return served.count(lambda: caller.ask(receive, 200))


def count_page(served: ProfiledService) -> Counter[str]:
    with contextlib.closing(Caller(served.port)) as caller:
        page = f"GET {CONSOLE_PAGE} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {_log_in(caller)}\r\n\r\n"
        return served.count(lambda: caller.ask(page, 200))


def write_sqs_settings(directory: Path) -> Path:
    settings = directory / "queuey.toml"
    settings.write_text(SQS_SETTINGS)
    return settings


def prepare_store(directory: Path) -> AccessKey:
    """Creates a store with both queues, fills :data:`JOBS`, and returns a new key for SQS."""
    with contextlib.closing(service.prepare(directory, (POSTS, JOBS))) as store:
        service.fill(store, bridge.run(store.catalogue.queue(service.APPLICATION, JOBS)), traffic.bodies(100), 1000)
        deployment = access_keys.deployment_secret(SqsFacade(), Settings(data=directory), os.environ)
        name = access_keys.new_access_key()
        bridge.run(store.applications.add_key(service.APPLICATION, access_keys.digest_of(name)))
        return {"id": name, "secret": access_keys.secret_of(deployment, name)}


def _log_in(caller: Caller) -> str:
    """Logs in to the console by its form; returns the session's Cookie header."""
    form, headers = caller.ask("GET /console/login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200)
    token = TOKEN.search(form)
    if token is None:
        raise Void("the console's login page has no form token")
    fields = urlencode({"form_token": token[1], "key": traffic.KEY})
    head = [
        "POST /console/login HTTP/1.1",
        "Host: 127.0.0.1",
        "Origin: http://127.0.0.1",
        "Content-Type: application/x-www-form-urlencoded",
        f"Content-Length: {len(fields)}",
        f"Cookie: {_cookies(headers)}",
    ]
    _, headers = caller.ask("\r\n".join([*head, "", fields]), 303)
    return _cookies(headers)


def _cookies(headers: HTTPMessage) -> str:
    return "; ".join(value.partition(";")[0] for name, value in headers.items() if name.lower() == "set-cookie")
