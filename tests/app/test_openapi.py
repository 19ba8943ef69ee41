"""The OpenAPI document: valid, complete, and served."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import NoneType
from typing import Any, get_type_hints

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from queuey.api.values import Done
from queuey.app.service import App
from queuey.app.version_1 import OPERATIONS, document
from queuey.runtime.limits import Limits
from queuey.web.responses import Response
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app

ID = "0123456789ab11e88000000000000001"
NAMES = {"app": "queuey", "queue": "q", "ids": ID, "id": ID, "group": "g", "name": "n"}
NAMES |= {"member": "m", "move": "0" * 16, "schedule": "s"}


def test_document_is_valid() -> None:
    """The document is OpenAPI 3.1."""
    errors = [error.message for error in OpenAPIV31SpecValidator(document()).iter_errors()]
    assert errors == []


def test_document_is_served(anonymous: Caller, limits: Limits) -> None:
    """Everybody can get the document, with the limits in force and the address that was used."""
    answer = anonymous("GET", "/v1/openapi.json", headers={"Host": "queues.example.com", "X-Forwarded-Proto": "https"})
    servers = [{"url": "https://queues.example.com"}]
    assert answer.json == {"servers": servers, **json.loads(json.dumps(document(limits)))}


def test_every_route_is_documented(app: App, anonymous: Caller) -> None:
    """The document has exactly the paths and methods that there are."""
    served = set()
    for route, _ in app.resources.routes:
        path = re.sub(r":\[[^}]*", "", route.pattern.removesuffix("{_:/?}"))
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"):
            accept = {"Accept": "application/problem+json"}
            reply = anonymous(method, path.format_map(NAMES), headers=accept)
            if reply.status == 200 or reply.json["code"] not in {"NotFound", "MethodNotAllowed"}:
                served.add((method, path))
    operations = {(method, path) for method, path in served if not path.startswith(("/__", "/metrics"))}
    assert operations == {(operation.method, operation.path) for operation in OPERATIONS}


def test_a_view_says_what_the_table_says() -> None:
    """A view that gets what was asked takes the struct of the query, and returns that of the answer, or a response."""
    for operation in (each for each in OPERATIONS if each.action):
        hints = get_type_hints(operation.view)
        assert hints.get("query", hints.get("body")) in {operation.query, dict[str, Any]}, operation.id
        answered = Done if hints["return"] is NoneType else hints["return"]
        assert answered in {operation.success[200].content["application/json"], Response}, operation.id


def test_limits_are_those_in_force() -> None:
    """A service with other limits has them in its document: of waits, bodies, batches, pages, and in texts."""
    limits = Limits(max_wait=300.0, max_body=77, max_batch=7, max_limit=55, default_ttl=66)
    published = document(limits)
    parameters = [p for path in published["paths"].values() for access in path.values() for p in access["parameters"]]
    schemas = published["components"]["schemas"]
    assert {p["schema"]["maximum"] for p in parameters if p["name"] == "wait"} == {300.0}
    assert schemas["ManyRanges"]["properties"]["wait"]["maximum"] == 300.0
    assert schemas["MessagesToPost"]["properties"]["messages"]["maxItems"] == 7
    assert 55 in {p["schema"].get("maximum") for p in parameters if p["name"] == "limit"}
    assert {p["description"] for p in parameters if p["name"] == "X-TTL"} == {
        "Seconds to live; by default the queue's `ttl`, or 66"
    }
    post = published["paths"]["/v1/{app}/{queue}"]["post"]["requestBody"]["content"]
    assert post["*/*"]["schema"] == {"description": "Up to 77 bytes"}
    assert "x-limit" not in json.dumps(published)


def test_operations_are_told_apart() -> None:
    """Every operation has a name of its own, fit for generated clients."""
    names = [access["operationId"] for path in document()["paths"].values() for access in path.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z][A-Za-z]+", name) for name in names)


def test_texts_have_no_marks_of_docstrings() -> None:
    """Descriptions are for readers of the document, who do not know Sphinx's roles or None."""
    published = document()
    for path in published["paths"].values():
        for access in path.values():
            del access["x-codeSamples"]
    assert re.findall(r":\w+:`|``|\bNone\b", json.dumps(published)) == []


def test_bodies_that_must_be_sent(owner: Caller) -> None:
    """An operation whose body is said to be required answers 400 without one, and only such an operation."""
    owner.create("q")
    for path, entries in document()["paths"].items():
        for method, access in entries.items():
            if "requestBody" in access:
                reply = owner(method.upper(), path.format_map(NAMES))
                assert (reply.status == 400) == access["requestBody"]["required"], access["summary"]


def test_parameters_can_be_sent() -> None:
    """Every header has a valid header name, and every name in a path says what fits there."""
    paths = document()["paths"]
    parameters = [p for path in paths.values() for access in path.values() for p in access["parameters"]]
    assert [p["name"] for p in parameters if not re.fullmatch(r"[A-Za-z_-]+", p["name"])] == []
    assert [p["name"] for p in parameters if p["in"] == "path" and "pattern" not in p["schema"]] == []


@pytest.mark.needs_programs
def test_a_process_that_made_the_document_ends_well() -> None:
    """No type of the API makes msgspec free a value wrongly when the interpreter's last collection clears it."""
    program = "from queuey.app.version_1 import document; document()"
    ends = [subprocess.run([sys.executable, "-c", program], check=False).returncode for _ in range(5)]
    assert ends == [0] * 5
