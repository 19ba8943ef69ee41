"""The examples of the OpenAPI document, played in order: each is answered as it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from jsonschema import Draft202012Validator

from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.app.version_1 import EXAMPLES, OPERATIONS, document
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from queuey.web.openapi import JSON, Example
from tests.app.alike import AnsweredValues, is_like
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import KEY, stop_all

OPERATIONS_BY_ID = {each.id: each for each in OPERATIONS}


class Player:
    """Plays examples; later requests use the real ids in place of those of the examples."""

    def __init__(self, app: App) -> None:
        self._owner = Caller(app, f"Application {KEY}", base="/v1/queuey")
        self._operator = Caller(app, f"Application {KEY[::-1]}", base="/v1/queuey")
        self._known = AnsweredValues()

    def play(self, example: Example) -> Reply:
        """Sends an example with the ids known so far, and learns those of the answer."""
        operation = OPERATIONS_BY_ID[example.operation]
        example_request = json.loads(self._known.translate(json.dumps(msgspec.to_builtins(example))))
        path = operation.path.format_map({k: quote(v, safe=":@") for k, v in example_request.get("path", {}).items()})
        body = example_request.get("body", "")
        headers = dict(example_request.get("headers", {}))
        if not isinstance(body, str):
            body = json.dumps(body)
            headers["Content-Type"] = JSON
        caller = self._operator if path == "/v1/@all" else self._owner
        query = urlencode(example_request.get("query", {}))
        reply = caller(operation.method, f"{path}?{query}" if query else path, body, headers=headers)
        if reply.is_json and example.answer is not None:
            self._known.learn(example.answer, reply.json)
        return reply


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Reply]]:
    """Plays all examples in order; returns the answers."""
    store = open_store(tmp_path_factory.mktemp("examples"))
    for name, key in (("queuey", KEY), ("@all", KEY[::-1])):
        if name != "@all":
            bridge.run(store.applications.create_application(name))
        bridge.run(store.applications.add_key(name, digest_of(key)))
    player = Player(make_app(store))
    yield list(map(player.play, EXAMPLES))
    stop_all()
    store.close()


@cache
def load_document() -> dict[str, Any]:
    return document()


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda number: f"{number}-{EXAMPLES[number].operation}")
def test_examples(replies: list[Reply], number: int) -> None:
    """The answer has the example's status and just the fields of its struct, and the sent body matches the schema."""
    example, reply = EXAMPLES[number], replies[number]
    assert (reply.status, reply.text if reply.status != example.status else "") == (example.status, "")
    if reply.is_json and example.answer is not None:
        assert is_like(reply.json, example.answer), reply.text
    whole, operation = load_document(), OPERATIONS_BY_ID[example.operation]
    kind = operation.success[example.status].content.get(JSON)
    kind = kind[0] if isinstance(kind, tuple) else kind
    if isinstance(kind, type):
        assert json.loads(msgspec.json.encode(msgspec.json.decode(reply.body, type=kind))) == reply.json
    entry = whole["paths"][operation.path][operation.method.lower()]
    contents = [entry.get("requestBody", {}), entry["responses"][str(example.status)]]
    for value, content in zip((example.body, example.answer), contents, strict=True):
        schema = content.get("content", {}).get(JSON, {}).get("schema")
        if schema is not None and value is not None and not isinstance(value, str):
            Draft202012Validator({**schema, "components": whole["components"]}).validate(value)
