"""OpenAPI 3.1 documents, put together from the msgspec types of an API's bodies and a table of its operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from queuey.web.responses import STATUS_LINES

JSON = "application/json"
REFERENCE = "#/components/schemas/{name}"

Schema = dict[str, Any]
Content = Mapping[str, Any]
"""Bodies by media type: a msgspec type, a schema as a dict, or several of these as a tuple."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of an operation; ``place`` is ``path``, ``query`` or ``header``."""

    name: str
    place: str
    about: str
    schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})

    def document(self) -> Schema:
        """Returns it as OpenAPI has it."""
        return {
            "name": self.name,
            "in": self.place,
            "description": self.about,
            "required": self.place == "path",
            "schema": dict(self.schema),
        }


class ResponseSpec(msgspec.Struct, frozen=True):
    """A response of an operation."""

    content: Content
    headers: Mapping[str, str] = {}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a path.

    Attributes:
        parameters: Beside those of the path.
        body: What is sent; empty: nothing.
        body_may_be_empty: Nothing may be sent instead.
        about: What neither the summary nor a schema can say.
        success: Answers by status.
        errors: Statuses with the API's error bodies.
    """

    method: str
    path: str
    summary: str
    success: Mapping[int, ResponseSpec]
    errors: Sequence[int]
    parameters: Sequence[Parameter] = ()
    body: Content = {}
    body_may_be_empty: bool = False
    about: str = ""
    anonymous: bool = False


def _schema(kind: Any, schemas: Mapping[Any, Schema]) -> Schema:  # noqa: ANN401 - a type or a schema
    if isinstance(kind, tuple):
        return {"anyOf": [_schema(one, schemas) for one in kind]}
    return dict(kind) if isinstance(kind, Mapping) else schemas[kind]


def _content(content: Content, schemas: Mapping[Any, Schema]) -> Schema:
    return {media: {"schema": _schema(kind, schemas)} for media, kind in content.items()}


def _response(status: int, response: ResponseSpec, schemas: Mapping[Any, Schema]) -> Schema:
    answer: Schema = {"description": STATUS_LINES[status][4:]}
    if response.content:
        answer["content"] = _content(response.content, schemas)
    if response.headers:
        answer["headers"] = {
            name: {"description": about, "schema": {"type": "string"}} for name, about in response.headers.items()
        }
    return answer


def _types(operations: Sequence[Operation], errors: Mapping[int, ResponseSpec]) -> list[Any]:
    """Returns every type that some body has, each once."""
    contents = [operation.body for operation in operations]
    contents += [response.content for operation in operations for response in operation.success.values()]
    contents += [response.content for response in errors.values()]
    values = [value for content in contents for value in content.values()]
    kinds = [kind for value in values for kind in (value if isinstance(value, tuple) else (value,))]
    return list(dict.fromkeys(kind for kind in kinds if not isinstance(kind, Mapping)))


def document(
    *,
    title: str,
    version: str,
    about: str,
    security: Mapping[str, Any],
    path_parameters: Sequence[Parameter],
    operations: Sequence[Operation],
    errors: Mapping[int, ResponseSpec],
) -> Schema:
    """Returns the document.

    Args:
        title: Of the API.
        version: Of this program.
        about: What holds for all operations.
        security: The one way to give a credential, as a security scheme.
        path_parameters: Every name in braces that a path may have.
        operations: What the API does.
        errors: The response of each error status.
    """
    kinds = _types(operations, errors)
    found, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    schemas = dict(zip(kinds, found, strict=True))
    paths: dict[str, Schema] = {}
    for operation in operations:
        parts = [p for p in path_parameters if f"{{{p.name}}}" in operation.path]
        answers = {str(status): _response(status, r, schemas) for status, r in operation.success.items()}
        answers |= {str(status): {"$ref": f"#/components/responses/{status}"} for status in operation.errors}
        entry: Schema = {
            "summary": operation.summary,
            "operationId": _operation_id(operation),
            "parameters": [p.document() for p in (*parts, *operation.parameters)],
            "responses": answers,
            "security": [{}] if operation.anonymous else [{"credential": []}, {}],
        }
        if operation.about:
            entry["description"] = operation.about
        if operation.body:
            content = _content(operation.body, schemas)
            entry["requestBody"] = {"required": not operation.body_may_be_empty, "content": content}
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": about, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _response(status, r, schemas) for status, r in errors.items()},
            "securitySchemes": {"credential": dict(security)},
        },
    }


def _operation_id(operation: Operation) -> str:
    """Returns a name for generated clients: the words of the summary up to the first comma."""
    words = operation.summary.partition(",")[0].lower().split()
    return words[0] + "".join(word.capitalize() for word in words[1:])
