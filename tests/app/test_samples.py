"""The examples in curl, Python and JavaScript of the OpenAPI document and its page, run in order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from deploy.api_page import ADDRESS, FIRST_PYTHON_CALL, PROGRAM_STARTS
from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.version_1 import EXAMPLES
from queuey.client import Client
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from queuey.web.openapi import Example, make_samples
from tests.app.alike import AnsweredValues, is_like, values_in
from tests.app.programs import install_client, make_operator_key, run_module
from tests.app.test_examples import OPERATIONS_BY_ID
from tests.in_process import InProcess
from tests.javascript.test_node import needs_node
from tests.pages import Block, Reader
from tests.servers.served import Served
from tests.web.gateway_calls import KEY

STREAMS = {"followQueues", "followManyQueues", "readMessages"}
"""Operations that follow queues; clients choose one of them."""
FOLLOW_OPERATIONS = {"followQueues", "followManyQueues", "joinGroup"}
"""Operations whose examples never end."""
WITHOUT_PYTHON = {
    "describeCaller",
    "getApiPage",
    "getBrowserClient",
    "getBrowserClientTypes",
    "getOpenapiDocument",
    "listApplications",
    "showService",
}


class Exchange(NamedTuple):
    """A request that a client sent, and its answer."""

    method: str
    path: str
    status: int
    answer: Any


class Stopped(Exception):
    """Raised when the first message has arrived."""


def source_of(example: Example, language: str) -> str:
    return make_samples(OPERATIONS_BY_ID[example.operation], example).get(language, "")


def answer_to(example: Example, exchanges: list[Exchange]) -> Any:  # noqa: ANN401 - JSON
    """Returns what a client received from the operation of an example, with its status; joins the answers to posts."""
    names = STREAMS if example.operation in STREAMS else {example.operation}
    operations = [OPERATIONS_BY_ID[name] for name in names]
    forms = {(each.method, re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(each.path))) for each in operations}
    answers = [
        each
        for each in exchanges
        for method, form in forms
        if each.method == method and re.fullmatch(form, each.path.rstrip("/") or "/")
    ]
    assert answers, f"{example.operation} is not what was called: {exchanges}"
    assert answers[0].status == example.status, answers[0]
    if example.operation == "postMessages":
        return {"messages": [message for each in answers for message in each.answer["messages"]]}
    return answers[0].answer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served


def test_curl(served: Served, tmp_path: Path) -> None:
    """Each command, typed after the first lines of the page, is answered as the page shows."""
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    keys = {"listApplications": make_operator_key(served)}
    answers = AnsweredValues()
    for example in EXAMPLES:
        key = keys.get(example.operation, str(served.profile.key))
        reader = Reader(served, tmp_path, CURL_HOME=str(tmp_path), KEY=key)
        source = PROGRAM_STARTS["curl"].replace(ADDRESS, served.profile.url) + answers.translate(
            source_of(example, "curl")
        )
        if isinstance(example.answer, str) and "curl -N" in source:
            source = source.replace("curl -N", "timeout 1 curl -N") + " || test $? -eq 124"
        output = reader.run("/docs", Block("sh", source, 1))
        if example.answer is not None and not isinstance(example.answer, str):
            [answer] = values_in(output)
            assert is_like(answer, example.answer), output
            answers.learn(example.answer, answer)
        elif isinstance(example.answer, str):
            assert example.answer.split("data:")[1][:14] in output


class Recording(InProcess):
    """A transport to an application that records requests, with the status and any JSON of their answers."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401
        super().__init__(app)
        self.exchanges: list[Exchange] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        is_json = "json" in answer.headers.get("Content-Type", "")
        body = json.loads(answer.content) if is_json else None
        self.exchanges.append(Exchange(request.method, request.url.path, answer.status_code, body))
        return answer


def test_python(tmp_path: Path) -> None:
    """Each program calls the operation that it stands at, and uses what the programs before it have made."""
    store = open_store(tmp_path)
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
    transport = Recording(make_app(store))
    names: dict[str, Any] = {"client": Client(ADDRESS, key=KEY, transport=transport)}
    answers, missing = AnsweredValues(), set()

    def stop(*_: object) -> None:
        raise Stopped

    for example in EXAMPLES:
        source = answers.translate(source_of(example, "Python"))
        if not source:
            missing.add(example.operation)
            continue
        transport.exchanges.clear()
        names["print"] = stop if example.operation in FOLLOW_OPERATIONS else lambda *_: None
        try:
            exec(compile(source, example.operation, "exec"), names)
        except Stopped:
            continue
        answer = answer_to(example, transport.exchanges)
        answers.learn(example.answer, answer)
    assert missing == WITHOUT_PYTHON
    names["client"].close()
    store.close()


RECORDER = """
import { writeFileSync } from "node:fs";
const exchanges = [], real = fetch;
globalThis.fetch = async (address, options = {}) => {
  const answer = await real(address, options);
  const body = /json/.test(answer.headers.get("Content-Type")) ? await answer.clone().json() : null;
  exchanges.push([options.method ?? "GET", new URL(address).pathname, answer.status, body]);
  return answer;
};
process.on("exit", () => writeFileSync("exchanges.json", JSON.stringify(exchanges)));
"""


@needs_node
def test_javascript(served: Served, tmp_path: Path) -> None:
    """Each program calls the operation that it stands at; programs of claims use what was claimed before."""
    install_client(tmp_path)
    keys = {"listApplications": make_operator_key(served)}
    answers, claimed = AnsweredValues(), "[]"
    begin = RECORDER + PROGRAM_STARTS["JavaScript"].replace(ADDRESS, served.profile.url)
    for example in EXAMPLES:
        source = answers.translate(source_of(example, "JavaScript"))
        if "claimed[" in source:
            source = f"const claimed = {claimed};\n{source}"
        if example.operation in FOLLOW_OPERATIONS:
            source = f"setTimeout(() => process.exit(), 2000);\n{source}"
        key = keys.get(example.operation, str(served.profile.key))
        run_module(tmp_path, f"{begin}{{\n{source}\n}}", key)
        exchanges = json.loads((tmp_path / "exchanges.json").read_text())
        answer = answer_to(example, [Exchange(*each) for each in exchanges])
        if example.operation == "claimMessages":
            claimed = json.dumps(answer["messages"])
        answers.learn(example.answer, answer)


def test_first_program(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first program in Python, with the address of the service, works with its key."""
    monkeypatch.setenv("KEY", str(served.profile.key))
    with served.client() as client:
        client.create_queue("orders")
    names: dict[str, Any] = {}
    exec(
        compile(PROGRAM_STARTS["Python"].replace(ADDRESS, served.profile.url) + FIRST_PYTHON_CALL, "/docs", "exec"),
        names,
    )
    names["client"].close()
    assert "'send'" in capsys.readouterr().out
