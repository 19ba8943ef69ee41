"""An OpenAPI document as a page to read: HTML that needs nothing from elsewhere, with a script only if it may send."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import msgspec

Part = Mapping[str, Any]
"""A part of an OpenAPI document."""

KINDS = {"string": "text", "boolean": "true or false"}
"""Types of JSON that have another name on the page."""


# Files are read at the start: an installation of another version beside a running service replaces them.
STYLE = Path(__file__).with_name("api_page.css").read_text()
"""The styles of :func:`contents` and of :func:`page`."""
SCRIPT = Path(__file__).with_name("api_page.js").read_text()
"""Adds forms to :func:`page`, which send its requests."""


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def policy(*, sends: bool) -> str:
    """Returns the Content-Security-Policy of :func:`page`: what is in it is allowed by its hash, and nothing else.

    ``'self'`` would not do for scripts, because it allows every address of the service, stored messages included.
    """
    sending = f"script-src {_digest(SCRIPT)}; connect-src 'self'; require-trusted-types-for 'script'; "
    return (
        f"default-src 'none'; {sending if sends else ''}style-src {_digest(STYLE)}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def page(document: Part, link: str, *, sends: bool = False) -> str:
    """Returns the page.

    Args:
        document: The OpenAPI document.
        link: Its address.
        sends: With forms that send requests.
    """
    title = escape(f"{document['info']['title']} {document['info']['version']}: HTTP API")
    forms = f'<script type="module">{SCRIPT}</script>\n' if sends else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n"
        f'<body class="api-page">\n<h1>{title}</h1>\n{contents(document, link)}{forms}</body>\n</html>\n'
    )


def contents(document: Part, link: str) -> str:
    """Returns the part of :func:`page` below its title, for another page."""
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = document["components"]
    return (
        f'<div class="api">\n{_index(document)}<main>\n<p>{_text(document["info"]["description"])}</p>\n'
        f'<p>This page is made from the <a class="api-document" href="{escape(link)}">OpenAPI document</a>.</p>\n'
        f"{''.join(_credential(scheme) for scheme in parts['securitySchemes'].values())}{''.join(operations)}"
        f'<h2 id="errors">Errors</h2>\n{_answers(parts["responses"], "error-")}'
        f'<h2 id="types">Types</h2>\n{"".join(_schema(name, schema) for name, schema in parts["schemas"].items())}'
        "</main>\n</div>\n"
    )


def _text(text: str) -> str:
    """Returns a text of the document as HTML: it may have code in backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _label(method: str) -> str:
    return f'<span class="api-method api-{method}">{method.upper()}</span>'


def _index(document: Part) -> str:
    items = [
        f'<li><a href="#{escape(operation["operationId"])}">{_label(method)} {_text(operation["summary"])}</a></li>\n'
        for methods in document["paths"].values()
        for method, operation in methods.items()
    ]
    ends = '<li><a href="#errors">Errors</a></li>\n<li><a href="#types">Types</a></li>\n'
    return f"<nav>\n<ul>\n{''.join(items)}{ends}</ul>\n</nav>\n"


def _credential(scheme: Part) -> str:
    place = f"{escape(scheme['in'])} {_code(scheme['name'])}"
    return f"<p>Credentials are sent in the {place}: {_text(scheme['description'])}</p>\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table of cells in HTML, and nothing if it has no rows."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    names = "".join(f"<th>{name}</th>" for name in head)
    return f"<table>\n<tr>{names}</tr>\n{body}</table>\n" if body else ""


def _operation(method: str, path: str, operation: Part) -> str:
    about = f"<p>{_text(operation['description'])}</p>\n" if "description" in operation else ""
    parameters = [
        (_code(p["name"]), escape(p["in"]), _text(p["description"]), _type(p["schema"]))
        for p in operation["parameters"]
    ]
    body = ""
    if sent := operation.get("requestBody"):
        optional = "" if sent["required"] else ", or nothing"
        body = f"<p>Body: {_content(sent['content'])}{optional}</p>\n"
    answers = {status: answer for status, answer in operation["responses"].items() if "$ref" not in answer}
    errors = [status for status in operation["responses"] if status not in answers]
    links = ", ".join(f'<a href="#error-{status}">{status}</a>' for status in errors)
    return (
        f'<section id="{escape(operation["operationId"])}">\n<h2>{_text(operation["summary"])}</h2>\n'
        f"<p>{_label(method)} {_code(path)}</p>\n{about}"
        f"{_table(('parameter', 'in', 'meaning', 'type'), parameters)}{body}{_answers(answers)}"
        f"<p>Errors: {links}</p>\n</section>\n"
    )


def _answers(answers: Part, anchor: str = "") -> str:
    """Returns the table of answers by status, with anchors if their beginning is given."""
    rows = []
    for status, answer in answers.items():
        number = f'<span id="{anchor}{status}">{status}</span>' if anchor else status
        headers = [
            f"{_code(name)}: {_text(header['description'])}" for name, header in answer.get("headers", {}).items()
        ]
        rows.append(
            (f"{number} {escape(answer['description'])}", _content(answer.get("content", {})), "<br>".join(headers))
        )
    return _table(("answer", "body", "headers"), rows)


def _content(content: Part) -> str:
    return "<br>".join(
        f"{_code(media)} {_type(value['schema'])}{_example(value.get('example'))}" for media, value in content.items()
    )


def _example(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    return f"<pre>{escape(text)}</pre>"


def _schema(name: str, schema: Part) -> str:
    required = schema.get("required", ())
    rows = [
        (_code(field), "yes" if field in required else "", _type(value), "<br>".join(_abouts(value)))
        for field, value in schema.get("properties", {}).items()
    ]
    about = f"<p>{_text(schema['description'])}</p>\n" if "description" in schema else ""
    fields = _table(("field", "always there", "type", "meaning"), rows) or f"<p>{_type(schema)}</p>\n"
    return f'<section id="type-{escape(name)}">\n<h3>{escape(name)}</h3>\n{about}{fields}</section>\n'


def _abouts(schema: Part) -> list[str]:
    """Returns the descriptions of a schema and its alternatives."""
    own = [_text(schema["description"])] if "description" in schema else []
    return own + [about for one in schema.get("anyOf", ()) for about in _abouts(one)]


def _type(schema: Part) -> str:
    """Returns a schema in words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        words = " or ".join(_code(msgspec.json.encode(value).decode()) for value in schema["enum"])
    elif schema.get("type") == "array":
        words = f"list of {_type(schema.get('items', {}))}"
    elif "additionalProperties" in schema:
        values = schema["additionalProperties"]
        words = f"map of text to {_type(values if isinstance(values, Mapping) else {})}"
    else:
        kind = schema.get("type", "anything")
        words = KINDS.get(kind, escape(kind))
    return ", ".join([words, *_limits(schema)])


def _limits(schema: Part) -> list[str]:
    found = [
        f"{words} {schema[name]:,}{unit}"
        for name, words, unit in (
            ("minimum", "at least", ""),
            ("maximum", "at most", ""),
            ("maxItems", "at most", ""),
            ("maxLength", "at most", " characters"),
        )
        if name in schema
    ]
    if "pattern" in schema:
        found.append(_code(schema["pattern"]))
    if schema.get("default") is not None:
        found.append(f"default {_code(msgspec.json.encode(schema['default']).decode())}")
    return found
