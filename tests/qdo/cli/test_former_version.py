"""Commands on a machine with data of 0.1.0, and against a service of 0.1.0."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from queuey.client import Client
from tests.commands import Run
from tests.qdo.cli.conftest import ServiceGroup
from tests.qdo.cli.workers import Hire
from tests.qdo.service.former import write_former
from tests.servers.plugin import unique_name
from tests.servers.served import environment


@pytest.fixture
def group(service_group: ServiceGroup) -> ServiceGroup:
    return service_group


class OldService(BaseHTTPRequestHandler):
    """A service like 0.1.0: it knows hello and the worker's rights, and nothing below ``_groups``."""

    def do_GET(self) -> None:
        answers = {
            "/v1/": {"version": "0.1.0", "store": "sqlite", "id": "a" * 32},
            "/v1/queuey/": {"status": "ok", "queues": [], "names": []},
        }
        self._answer(answers.get(self.path.partition("?")[0]))

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        allowed = ["read", "claim", "send", "admin"]
        rights = [{"queue_name": name, "actions": allowed} for name in query.get("queues", ())]
        self._answer({"status": "ok", "queues": rights} if self.path.endswith("/_rights") else None)

    def _answer(self, answer: object) -> None:
        code = "NotFound" if "/_" in self.path else "InvalidQueueName"
        body = json.dumps(answer or {"status": 404, "code": code, "errors": {code: "it is not here"}}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("content-type", f"application/{'json' if answer else 'problem+json'}")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def old_service() -> Iterator[str]:
    """Runs an old service, and yields the URL of its application."""
    with ThreadingHTTPServer(("127.0.0.1", 0), OldService) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/queuey/"
        finally:
            server.shutdown()
            serving.join(60)


def test_a_service_without_groups(tmp_path: Path, old_service: str) -> None:
    """A worker exits with code 2, because no restart helps, and names what to use; it tries nothing else before."""
    variables = environment(QUEUEY_URL=old_service, QUEUEY_KEY="a-key", QDO_GROUP="archive")
    with Hire(tmp_path, variables)("handlers:handle", "--queue", "reports", "--on-failure", "skip") as worker:
        assert worker.wait_for_end() == 2, "".join(worker.log)
    assert worker.log[-1] == "qdo: This service has no groups (0.2 or later). Use --coordination zookeeper://…\n"
    assert not any("Traceback" in line for line in worker.log)


def test_offsets_are_imported_under_another_name(
    run: Run, group: ServiceGroup, client: Client, queue: str, tmp_path: Path
) -> None:
    """A group whose name the service does not allow continues under an allowed one; the command may be repeated."""
    sent = [client.send(queue, str(number), partition=1).id for number in range(2)]
    file, name = tmp_path / "coordination.sqlite3", unique_name("group")
    write_former(file, "x y", {group.partition(queue, 1): sent[1]})
    command = ["offsets", "import", "--group", "x y", "--file", str(file)]
    refused = run(*command)
    assert (refused.code, "Group name 'x y' is not allowed by the service" in refused.err) == (2, True)
    for _ in range(2):
        ended = run(*command, "--as", name)
        assert (ended.code, ended.err) == (0, "1 offsets were recorded.\n")
    assert client.offsets(queue, name).partitions[1].offset == sent[1]
    missing = run("offsets", "import", "--group", "unheard-of", "--file", str(file))
    assert (missing.code, f"{file} has no group 'unheard-of'" in missing.err) == (1, True)


def test_a_worker_begins_where_the_file_ended(
    hire: Hire, group: ServiceGroup, client: Client, queue: str, tmp_path: Path
) -> None:
    """With the user's file and without any option, messages handled before are not handled again."""
    sent = [client.send(queue, str(number), partition=1).id for number in range(3)]
    file = tmp_path / "state" / "qdo" / "coordination.sqlite3"
    write_former(file, group.name, {group.partition(queue, 1): sent[1]})
    hire.variables["XDG_STATE_HOME"] = str(tmp_path / "state")
    with hire("handlers:handle", "--queue", queue, "--threads", "1") as worker:
        assert worker.read_lines(1) == ["handled 1 2"]
        assert worker.end() == 0
