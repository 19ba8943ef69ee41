"""Requests that fit the published OpenAPI document, and those that just do not, get answers that it promises."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.core.failures import FailureGroup

from queuey.messages import OPERATORS
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from queuey.web import make_app
from queuey.web.credentials import digest_of
from queuey.web.v1.spec import document
from tests.acceptance.fuzzing.operations import Target
from tests.in_process import InProcess
from tests.servers.served import Served
from tests.waiting import join

LABELS = [
    f"{method.upper()} {path}"
    for path, entries in document()["paths"].items()
    for method in entries
    if not path.endswith("/_stream")  # Its answers do not end: see tests/web/reads/test_streams.py.
]
FEW_EXAMPLES = settings(
    max_examples=7,
    derandomize=True,
    database=None,
    deadline=None,
    # A failing example is shown as it is: shrinking it takes longer than the run.
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
OPERATOR = "an operator's key"
MANY_EXAMPLES = settings(FEW_EXAMPLES, max_examples=150, derandomize=False, print_blob=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that logs no defect."""
    with Served(tmp_path_factory.mktemp("fuzzed"), ["--max-wait", "0.05"]) as running:
        store = open_store(running.data)
        bridge.run(store.applications.add_key(OPERATORS, digest_of(OPERATOR)))
        store.close()
        yield running
        assert "Traceback" not in running.output


@pytest.fixture
def target(served: Served) -> Iterator[Target]:
    """The service, with the keys of its application and of an operator."""
    keys = f"{served.profile.key}; Application {OPERATOR}"
    running = Target(served.profile.url, served.profile.application, keys)
    yield running
    running.close()


def fuzz(target: Target, how: settings, label: str) -> Counter[int]:
    statuses: Counter[int] = Counter()

    @how
    @given(target.cases(label), st.data())
    def play(case: Case[Any], data: st.DataObject) -> None:
        target.renew()
        statuses[target.play(case, data).status_code] += 1

    play()
    return statuses


def fuzz_sequences(target: Target, how: settings) -> Counter[int]:
    statuses: Counter[int] = Counter()
    any_case = st.sampled_from(LABELS).flatmap(target.cases)

    @how
    @given(st.lists(any_case, min_size=4, max_size=8), st.data())
    def play(cases: list[Case[Any]], data: st.DataObject) -> None:
        target.renew()
        statuses.update(target.play(case, data).status_code for case in cases)

    play()
    return statuses


NOT_FOUND = {f"{method} /v1/{{app}}/_groups/{{group}}" for method in ("GET", "DELETE")}
"""Operations that find nothing here: no member has joined a group."""


@pytest.mark.parametrize("label", LABELS)
def test_operations(target: Target, label: str) -> None:
    """Every operation answers valid and invalid requests as documented; some find the queue and have the rights."""
    statuses = fuzz(target, FEW_EXAMPLES, label).keys()
    assert label in NOT_FOUND or statuses - {401, 403, 404}


def test_sequences(target: Target) -> None:
    """Requests on what other requests have made, changed or deleted are answered as documented."""
    assert fuzz_sequences(target, FEW_EXAMPLES).keys() >= {200, 400, 404}


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_operations_at_random(target: Target, label: str) -> None:
    """The same holds for hundreds of random requests."""
    fuzz(target, MANY_EXAMPLES, label)


@pytest.mark.slow
def test_sequences_at_random(target: Target) -> None:
    """The same holds for hundreds of random sequences."""
    fuzz_sequences(target, MANY_EXAMPLES)


# The same checks on a service that contradicts its document

Spoil = Callable[[str, bytes], tuple[str, str, bytes]]
"""Changes of an answer: from a good one's status and body to status, content type and body of a bad one."""
JSON = "application/json"
SPOILS: dict[str, Spoil] = {
    "500": lambda status, body: ("500 Internal Server Error", JSON, b'{"status":"error","error_msg":{}}'),
    "undocumented": lambda status, body: ("418 I am a teapot", JSON, b'{"status":"error","error_msg":{}}'),
    "schema": lambda status, body: (status, JSON, body.replace(b'"count":', b'"number":')),
    "type": lambda status, body: (status, "text/html", body),
}


def make_handler(served: InProcess, spoil: Spoil) -> type[BaseHTTPRequestHandler]:
    """Forwards requests to the application; `spoil` changes status and body of each 200 from an ``/info`` path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = f"http://service{self.path}"
            headers = [*self.headers.items()]
            reply = served.handle_request(httpx2.Request(self.command, url, headers=headers, content=content))
            status, kind, body = f"{reply.status_code}", reply.headers["Content-Type"], reply.content
            if "/info" in self.path and status == "200":
                status, kind, body = spoil(status, body)
            self.send_response(int(status[:3]))
            for name, value in reply.headers.items():
                if name.lower() not in {"content-type", "content-length"}:
                    self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - as the base class wants them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by the base class
            pass

    return Handler


@pytest.mark.parametrize("spoil", SPOILS)
def test_defects_are_noticed(tmp_path: Path, spoil: str) -> None:
    """One operation that does not answer as published is found out within a test's few requests."""
    store = open_store(tmp_path)
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of("k")))
    application = InProcess(make_app(store))
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(application, SPOILS[spoil]))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    target = Target(f"http://127.0.0.1:{server.server_port}", "queuey", "k")
    try:
        with pytest.raises(FailureGroup):
            fuzz(target, FEW_EXAMPLES, "GET /v1/{app}/{queue}/info")
        fuzz(target, FEW_EXAMPLES, "GET /v1/{app}/{queue}/offsets")
    finally:
        target.close()
        server.shutdown()
        join(thread)
        server.server_close()
        application.close()
        store.close()
