"""Checks answers against the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from queuey.app.version_1 import document

SOMETIMES = {201: {"Idempotent-Replayed"}, 409: {"Retry-After"}}
"""Headers that not every answer of a status has."""


@cache
def strict_document() -> dict[str, Any]:
    """Returns the document, changed to allow in an answer only what it names."""
    strict = document()
    for schema in strict["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return strict


PATHS_IN_ORDER = sorted(strict_document()["paths"], key=lambda path: ("{ids}" in path, "{group}" in path, path))
"""Sort key of paths: fixed words before names in braces, as the routes are matched."""
PATTERNS = [(re.compile(re.sub(r"\\{(\w+)\\}", "[^/]+", re.escape(path))), path) for path in PATHS_IN_ORDER]
"""Computed once: every request of the tests of the API is looked up here."""


@lru_cache(maxsize=4096)
def operation(method: str, path: str) -> dict[str, Any] | None:
    """Returns what the document says of a request, or None if it has no such path or method."""
    path = path.rstrip("/") or "/"
    for pattern, template in PATTERNS:
        if pattern.fullmatch(path):
            documented: dict[str, Any] | None = strict_document()["paths"][template].get(method.lower())
            return documented
    return None


def _resolve(part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in part:
        return part
    node: Any = strict_document()
    for name in part["$ref"].removeprefix("#/").split("/"):
        node = node[name]
    return dict(node)


@cache
def _validator(media: str, operation_id: str, status: str, *, raw: bool) -> Draft202012Validator | None:
    """Returns the validator of an operation's answer, or None for a media type without a schema.

    Fails if the document does not promise the status or the media type.
    """
    methods = (access for path in strict_document()["paths"].values() for access in path.values())
    [access] = [access for access in methods if access["operationId"] == operation_id]
    assert status in access["responses"], f"{operation_id} does not promise {status}"
    response = _resolve(access["responses"][status])
    content = response["content"]
    assert media in content or "*/*" in content, f"{operation_id} does not promise {media} with {status}"
    if media not in content:
        return None
    schema = content[media]["schema"]
    if "anyOf" in schema:
        schema = schema["anyOf"][1 if raw else 0]
    return Draft202012Validator({**schema, "components": strict_document()["components"]})


def check(method: str, path: str, status: int, headers: Mapping[str, str], content: Any, *, raw: bool) -> None:  # noqa: ANN401
    """Fails unless the document promises this answer to this request; undocumented operations are not checked.

    Args:
        method: Method of the request.
        path: Path of the request, undecoded, without the query.
        status: Status of the answer.
        headers: Headers of the answer.
        content: The decoded JSON, or text.
        raw: The request asked for a raw body.
    """
    documented = operation(method, path)
    if documented is None:
        return
    media = headers["Content-Type"].partition(";")[0]
    validator = _validator(media, documented["operationId"], str(status), raw=raw)
    if validator is not None:
        errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]
        assert errors == [], f"{method} {path} answered what the document does not promise"
    promised = _resolve(documented["responses"][str(status)]).get("headers", {})
    if status != 200:
        names = {name.lower() for name in promised.keys() - SOMETIMES.get(status, set())}
        assert names <= {name.lower() for name in headers}
