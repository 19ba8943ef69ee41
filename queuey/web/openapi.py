"""OpenAPI 3.1 documents, made from the structs of an API and a table of its operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import inspect

from queuey.web.responses import STATUS_LINES

JSON = "application/json"
EVENTS = "text/event-stream"
MAX_LINE = 64
"""Max characters of a line of JSON in an example."""
REFERENCE = "#/components/schemas/{name}"
BOOLEAN = {"type": "string", "description": "`false`, `0` (any case) and nothing are false, else true"}
_BOUNDS = {"integer": "maximum", "number": "maximum", "string": "maxLength", "array": "maxItems"}

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
        return {
            "name": self.name,
            "in": self.place,
            "description": self.about,
            "required": self.place == "path",
            "schema": dict(self.schema),
        }


class ResponseSpec(msgspec.Struct, frozen=True):
    content: Content
    headers: Mapping[str, str] = {}


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to an operation and its response, as a client sees them.

    Attributes:
        operation: The ``operationId``.
        path: Values of the names in braces.
        query, headers: Parameters.
        body: Text, or a JSON value.
        python, javascript: The request with ``client`` or ``queuey``, the clients of these languages.
        answer: Text, or a JSON value.
    """

    operation: str
    path: dict[str, str] = {}
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: Any = None
    python: str = ""
    javascript: str = ""
    status: int = 200
    answer: Any = None


class Tag(msgspec.Struct, frozen=True):
    """A group of operations."""

    name: str
    about: str


class DocumentedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a path.

    Attributes:
        tag: Its group.
        query: The struct of the query.
        parameters: Parameters besides those of the path and the query.
        body: The content of the request; empty if it has no body.
        body_may_be_empty: The body is optional.
        about: Rules that neither the summary nor a schema can state.
        success: Responses by status.
        errors: Statuses with the API's error bodies.
    """

    method: str
    path: str
    summary: str
    tag: Tag
    success: Mapping[int, ResponseSpec]
    errors: Sequence[int]
    query: type[msgspec.Struct] | None = None
    parameters: Sequence[Parameter] = ()
    body: Content = {}
    body_may_be_empty: bool = False
    about: str = ""
    anonymous: bool = False

    @property
    def id(self) -> str:
        """A name for generated clients: the words of the summary up to the first comma, in camel case."""
        words = self.summary.partition(",")[0].lower().split()
        return words[0] + "".join(word.capitalize() for word in words[1:])


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of an API's document.

    Attributes:
        version: The version of this program.
        about: The purpose of the API and, in further paragraphs, the rules for all operations.
        tags: The groups of operations, in reading order.
        security: The security scheme of credentials.
        path_parameters: Every name in braces that a path may have.
        strict: The parameter that every query may have.
        errors: The response of each error status.
    """

    title: str
    version: str
    about: str
    security: Mapping[str, Any]
    path_parameters: Sequence[Parameter]
    strict: Parameter
    tags: Sequence[Tag]
    operations: Sequence[DocumentedOperation]
    errors: Mapping[int, ResponseSpec]
    examples: Sequence[Example]


def make_document(api: Api, limits: msgspec.Struct) -> Schema:
    requests = [kind for operation in api.operations for kind in _find_types([operation.body])]
    answers = [spec.content for operation in api.operations for spec in operation.success.values()]
    answered = _find_types([*answers, *(spec.content for spec in api.errors.values())])
    kinds = list(dict.fromkeys([*requests, *answered]))
    found_schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    for kind in set(_find_all_structs(answered)).difference(_find_all_structs(requests)):
        _complete_answer(components[kind.__name__], kind)
    for kind in _find_all_structs(kinds):
        _add_descriptions(components[kind.__name__], kind)
    schemas = dict(zip(kinds, found_schemas, strict=True))
    paths: dict[str, Schema] = {}
    for operation in api.operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _make_operation(operation, api, schemas)
    content = {
        "openapi": "3.1.0",
        "info": {
            "title": api.title,
            "version": api.version,
            "description": api.about,
            "license": {"name": "Apache-2.0"},
        },
        "tags": [{"name": tag.name, "description": tag.about} for tag in api.tags],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _make_response(status, spec, schemas) for status, spec in api.errors.items()},
            "securitySchemes": {"credential": dict(api.security)},
        },
    }
    resolved: Schema = fill_in_limits(content, msgspec.structs.asdict(limits))
    return resolved


def describe_fields(kind: type[msgspec.Struct]) -> dict[str, Schema]:
    """Returns the schema of each field of a struct."""
    _, components = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    _add_descriptions(components[kind.__name__], kind)
    fields: dict[str, Schema] = components[kind.__name__]["properties"]
    return fields


def _make_operation(operation: DocumentedOperation, api: Api, schemas: Mapping[Any, Schema]) -> Schema:
    parts = [p for p in api.path_parameters if f"{{{p.name}}}" in operation.path]
    query = [] if operation.query is None else [*_make_query_parameters(operation.query), api.strict]
    answers = {str(status): _make_response(status, spec, schemas) for status, spec in operation.success.items()}
    answers |= {str(status): {"$ref": f"#/components/responses/{status}"} for status in operation.errors}
    entry: Schema = {
        "summary": operation.summary,
        "operationId": operation.id,
        "tags": [operation.tag.name],
        "parameters": [p.document() for p in (*parts, *query, *operation.parameters)],
        "responses": answers,
        "security": [{}] if operation.anonymous else [{"credential": []}, {}],
    }
    if operation.about:
        entry["description"] = operation.about
    if operation.body:
        content = _make_content(operation.body, schemas)
        entry["requestBody"] = {"required": not operation.body_may_be_empty, "content": content}
    names = {name: name.upper() for name in re.findall(r"{(\w+)}", operation.path)}
    made = Example(operation=operation.id, path=names, status=min(operation.success))
    example = next((e for e in api.examples if e.operation == operation.id), made)
    _add_example(entry, example)
    entry["x-codeSamples"] = [
        {"lang": "Shell" if label == "curl" else label, "label": label, "source": source}
        for label, source in make_samples(operation, example).items()
    ]
    return entry


def make_samples(operation: DocumentedOperation, example: Example) -> dict[str, str]:
    """Returns the request by language: a missing sample in JavaScript is made, a missing one in Python left out."""
    sources = {
        "curl": _make_curl(operation, example),
        "Python": example.python,
        "JavaScript": example.javascript or _make_fetch(operation, example),
    }
    return {label: source for label, source in sources.items() if source}


def _add_example(entry: Schema, example: Example) -> None:
    values = example.path | example.query | example.headers
    for parameter in entry["parameters"]:
        if parameter["name"] in values:
            parameter["example"] = values[parameter["name"]]
    for content, value in (
        (entry.get("requestBody", {}).get("content", {}), example.body),
        (entry["responses"][str(example.status)].get("content", {}), example.answer),
    ):
        if value is not None and content:
            media = JSON if JSON in content and not isinstance(value, str) else list(content)[-1]
            content[media]["example"] = value


def _make_url(operation: DocumentedOperation, example: Example, api: str, url: str) -> str:
    path = operation.path.format_map({name: quote(value, safe=":@,") for name, value in example.path.items()})
    address = url + path if "app" not in example.path else api + path.removeprefix(f"/v1/{example.path['app']}")
    return f"{address}?{urlencode(example.query, safe='*')}" if example.query else address


def indent_json(value: object, depth: int = 0) -> str:
    """Returns JSON with a value on one line if that has at most ``MAX_LINE`` characters, else its items on lines."""
    line = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    if not isinstance(value, list | dict) or len(line) + 2 * depth <= MAX_LINE:
        return line
    begin, end = line[0], line[-1]
    named = value.items() if isinstance(value, dict) else (("", item) for item in value)
    items = [(f"{indent_json(name)}: " if begin == "{" else "") + indent_json(item, depth + 1) for name, item in named]
    margin = "\n" + "  " * depth
    return begin + ",".join(f"{margin}  {item}" for item in items) + margin + end


def _make_curl(operation: DocumentedOperation, example: Example) -> str:
    sends = example.body is not None
    words = ["curl", "-N"] if [*operation.success[example.status].content] == [EVENTS] else ["curl"]
    if operation.method not in ({"POST"} if sends else {"GET"}):
        words += ["-X", operation.method]
    words += [f'"{_make_url(operation, example, "$api", "$url")}"']
    words += [] if operation.anonymous else ['-H "$auth"']
    words += [f"-H '{name}: {value}'" for name, value in example.headers.items()]
    if isinstance(example.body, str):
        words += [f"-d '{example.body}'"]
    elif sends:
        words += [f"--json '{indent_json(example.body)}'"]
    command = words[0]
    for word in words[1:]:
        start = word.partition("\n")[0]
        command += (" " if len(command.rpartition("\n")[2] + start) < MAX_LINE else " \\\n  ") + word
    return command


def _make_fetch(operation: DocumentedOperation, example: Example) -> str:
    headers = example.headers if operation.anonymous else {"Authorization": "auth", **example.headers}
    named = [f"{name}: {value}" if value == "auth" else f'"{name}": "{value}"' for name, value in headers.items()]
    fields = [] if operation.method == "GET" else [f'method: "{operation.method}"']
    if example.body is not None and not isinstance(example.body, str):
        named.append(f'"Content-Type": "{JSON}"')
    fields += [f"headers: {{ {', '.join(named)} }}"] if named else []
    if isinstance(example.body, str):
        fields.append(f'body: "{example.body}"')
    elif example.body is not None:
        fields.append("body: JSON.stringify({})".replace("{}", indent_json(example.body, 1)))
    joined = ",\n  ".join(fields)
    options = f", {{\n  {joined},\n}}" if len(fields) > 1 else ", { " + joined + " }" if fields else ""
    address = _make_url(operation, example, "${api}", "${url}")
    read = "json" if JSON in operation.success[example.status].content else "text"
    return f"const answer = await fetch(`{address}`{options});\nconsole.log(await answer.{read}());"


def _make_query_parameters(kind: type[msgspec.Struct]) -> Iterator[Parameter]:
    _, components = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    for name, field in components[kind.__name__]["properties"].items():
        forms = [form for form in field.get("anyOf", [field]) if form.get("type") not in {"null", "array"}]
        texts = [form for form in forms if form.get("type") == "string"]
        schema = {**(texts or forms)[0]}
        about = field.get("description") or schema.get("description", "")
        schema.pop("description", None)
        if any(form.get("type") == "boolean" for form in forms):
            schema = BOOLEAN if len(forms) == 1 else {"type": "string"}
        elif field.get("default") not in {None, ""}:
            schema["default"] = field["default"]
        yield Parameter(name=name, place="query", about=about, schema=schema)


def _find_schema(kind: Any, schemas: Mapping[Any, Schema]) -> Schema:  # noqa: ANN401 - a type or a schema
    if isinstance(kind, tuple):
        return {"anyOf": [_find_schema(k, schemas) for k in kind]}
    return dict(kind) if isinstance(kind, Mapping) else schemas[kind]


def _make_content(content: Content, schemas: Mapping[Any, Schema]) -> Schema:
    return {media: {"schema": _find_schema(kind, schemas)} for media, kind in content.items()}


def _make_response(status: int, response: ResponseSpec, schemas: Mapping[Any, Schema]) -> Schema:
    answer: Schema = {"description": STATUS_LINES[status][4:]}
    if response.content:
        answer["content"] = _make_content(response.content, schemas)
    if response.headers:
        answer["headers"] = {
            name: {"description": about, "schema": {"type": "string"}} for name, about in response.headers.items()
        }
    return answer


def _find_types(contents: Iterable[Content]) -> list[Any]:
    values = [value for content in contents for value in content.values()]
    kinds = [kind for value in values for kind in (value if isinstance(value, tuple) else (value,))]
    return list(dict.fromkeys(kind for kind in kinds if not isinstance(kind, Mapping)))


def _find_all_structs(kinds: Iterable[Any]) -> list[type[msgspec.Struct]]:
    structs: dict[type[msgspec.Struct], None] = {}
    pending = list(inspect.multi_type_info(kinds))
    while pending:
        kind = pending.pop()
        if isinstance(kind, inspect.StructType):
            if kind.cls in structs:
                continue
            structs[kind.cls] = None
            pending += [f.type for f in kind.fields]
        for name in ("type", "item_type", "value_type"):
            if (inner := getattr(kind, name, None)) is not None:
                pending.append(inner)
        pending += [*getattr(kind, "types", ())]
    return list(structs)


def _complete_answer(schema: Schema, kind: type[msgspec.Struct]) -> None:
    """Corrects the schema of an answer: all fields that are never left out are required.

    Fields that are left out instead of null are not nullable.
    """
    fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
    optional = {name for name, f in fields.items() if not f.required and kind.__struct_config__.omit_defaults}
    schema["required"] = [name for name in schema["properties"] if name not in optional]
    for name, value in schema["properties"].items():
        if value.pop("default", None) is None and name in optional and fields[name].default is None:
            [form_schema] = [form for form in value.pop("anyOf") if form != {"type": "null"}]
            value.update(form_schema)


def _add_descriptions(schema: Schema, kind: type[msgspec.Struct]) -> None:
    """Puts the class docstring and its ``Attributes`` into the descriptions of a struct's schema and properties.

    From the docstring it takes only the first paragraph, and no attribute that refers to a class.
    """
    text, _, more = (kind.__doc__ or "").partition("\n\n")
    schema["description"] = _use_json_terms(text)
    lines = re.search(r"Attributes:\n(.*)", more, re.DOTALL)
    for names, about in re.findall(
        r"^ +([\w, ]+): ((?:.|\n(?! +[\w, ]+: ))+)", lines[1] if lines else "", re.MULTILINE
    ):
        for name in names.split(", "):
            encoded = {f.name: f.encode_name for f in msgspec.structs.fields(kind)}.get(name, name)
            # A reference to another class is for readers of Python; that type has its own description.
            if encoded in schema["properties"] and ":class:" not in about:
                schema["properties"][encoded]["description"] = _use_json_terms(about)


def _use_json_terms(text: str) -> str:
    names = {"None": "null", "False": "false", "True": "true", "``": "`"}
    return re.sub(r"\b(?:None|False|True)\b|``", lambda match: names[match[0]], " ".join(text.split()))


def fill_in_limits(part: Any, limits: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Replaces names of limits by their values: ``{name}`` in texts, ``x-limit`` in schemas."""
    if isinstance(part, list):
        return [fill_in_limits(item, limits) for item in part]
    if isinstance(part, str):
        return re.sub(r"\{(\w+)\}", lambda name: f"{limits[name[1]]:,}" if name[1] in limits else name[0], part)
    if not isinstance(part, Mapping):
        return part
    resolved = {name: fill_in_limits(value, limits) for name, value in part.items()}
    if (limit := resolved.pop("x-limit", None)) is not None:
        resolved[_BOUNDS[resolved["type"]]] = limits[limit]
    return resolved
