"""Makes the page of the API: the OpenAPI document as HTML that loads nothing else.

``python -m deploy.api_page`` writes ``queuey/app/api_page.html``, which the service sends. ``--check`` only compares.
Names in braces, such as ``{max_body}``, are places for what a service knows: its limits, version, address and styles.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from queuey.app.version_1 import document
from queuey.runtime.limits import Limits
from queuey.web.openapi import indent_json

Part = Mapping[str, Any]
"""A part of an OpenAPI document."""

TYPE_NAMES = {"string": "text", "boolean": "true or false"}
"""Names of JSON types on the page, where they differ."""

LANGUAGES = ("curl", "Python", "JavaScript")
"""Languages of the examples; the first is shown."""
OPEN_GROUPS = {"Queues", "Messages", "Jobs", "Groups", "Schedules"}
"""Groups whose first operation is unfolded."""
MAX_ROWS, NARROW_COLUMNS = 24, 34
"""Max rows of code without scrolling, and the characters of a row on a narrow screen."""
TOKEN_PATTERN = re.compile(
    r"(?P<jc>(?:#|//) [^\n]*)"
    r'|(?P<jk>"(?:[^"\\\n]|\\.)*"(?=:))|(?P<js>"(?:[^"\\\n]|\\.)*"|`[^`\n]*`)'
    r"|(?P<jn>(?<![\w.$/:-])-?\d[\d_.e+-]*(?![\w-]))"
    r"|(?P<jl>\b(?:true|false|null|None|True|False|await|const|else|for|from|if|import|in|new|of)\b)"
)
"""Coloured tokens of JSON and of programs."""
RESULT = Path(__file__).parents[1] / "queuey" / "app" / "api_page.html"
COMMAND = "python -m deploy.api_page"
ADDRESS = "http://127.0.0.1:5000"
"""The URL of the service in examples."""
KEY_HINT = (
    "`queuey serve` writes a key into your profile, and prints where that is; `queuey app key-add` makes more. The "
    "application below is `queuey`, and `KEY` has its key:"
)
PROGRAM_STARTS = {
    "curl": f'url={ADDRESS}\napi="$url/v1/queuey"\nauth="Authorization: Application $KEY"\n\n',
    "Python": (
        f'import os\n\nfrom queuey.client import Client\n\nclient = Client("{ADDRESS}", key=os.environ["KEY"])\n\n'
    ),
    "JavaScript": (
        f'import {{ Queuey }} from "queuey-client";\n\nconst url = "{ADDRESS}", key = process.env.KEY;\n'
        'const queuey = new Queuey(url, "queuey", { key });\n'
        "const api = `${url}/v1/queuey`, auth = `Application ${key}`;\n\n"
    ),
}
"""The first lines of a program; the other examples continue it."""
FIRST_PYTHON_CALL = '# What the key may do with queues\nprint(client.rights(["orders"]))'
"""The first call in Python, whose client has no call for the first request."""
LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32" viewBox="0 0 64 64" aria-hidden="true">'
    '<rect width="64" height="64" rx="13"/>'
    '<path d="M41.6 44.6A18 18 0 0 1 20.4 44.6M16.4 40.6A18 18 0 0 1 16.4 19.4M20.4 15.4A18 18 0 0 1 41.6 15.4"/>'
    '<path class="api-tail" d="M45.6 19.4A18 18 0 0 1 45.6 40.6M35 34L52 51"/></svg>'
)
"""The console's ``icon.svg``, inline: a file would need another permission in the policy."""


class Place(str):
    """The place of a limit, which is formatted as its name in braces."""

    __slots__ = ()

    def __format__(self, _: str) -> str:
        return "{" + self + "}"


def make_page() -> str:
    limits = Limits(**{name: Place(name) for name in Limits.__struct_fields__})  # type: ignore[arg-type]
    published = document(limits)
    published["info"]["version"] = "{version}"
    return render_page(published)


def render_page(document: Part) -> str:
    title = escape(f"{document['info']['title']} HTTP API")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{{style}}</style>\n</head>\n"
        f'<body class="api-page">\n<header>{LOGO}<h1>{title}</h1> '
        f'<span class="api-quiet">{escape(document["info"]["version"])}</span></header>\n'
        f"{render_contents(document, '{link}')}</body>\n</html>\n"
    )


def render_contents(document: Part, link: str) -> str:
    groups: dict[str, list[tuple[str, str, Part]]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append((method, path, operation))
    parts = document["components"]
    intro, *rules = document["info"]["description"].split("\n\n")
    abouts = "".join(f"<p>{_render_text(rule)}</p>\n" for rule in rules)
    schemas = "".join(_render_schema(name, schema) for name, schema in parts["schemas"].items())
    operations = "".join(_render_group(tag, groups[tag["name"]], parts["schemas"]) for tag in document["tags"])
    return (
        f'<div class="api">\n{_render_index(groups)}<main>\n{_render_language_choice()}'
        f'<p class="api-intro">{_render_text(intro)}</p>\n'
        f"{_render_start(document, link)}{operations}"
        f'<h2 id="rules">Rules for all requests</h2>\n{abouts}'
        f'<h2 id="errors">Errors</h2>\n{_render_answers(parts["responses"], "error-")}'
        f'<details class="api-types"><summary><h2 id="types">Types</h2></summary>\n{schemas}</details>\n'
        "</main>\n</div>\n"
    )


def _render_text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _render_code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _render_method(method: str) -> str:
    return f'<span class="api-method api-{method}">{method.upper()}</span>'


def _make_anchor(tag: str) -> str:
    return escape(f"group-{tag.lower().replace(' ', '-')}")


def _render_index(groups: Mapping[str, Iterable[tuple[str, str, Part]]]) -> str:
    items = ['<li><a href="#start">Start</a></li>\n']
    for tag, operations in groups.items():
        links = "".join(
            f'<li><a href="#{escape(operation["operationId"])}">{_render_method(method)}'
            f"<span>{_render_text(operation['summary'].partition(',')[0])}</span></a></li>\n"
            for method, _, operation in operations
        )
        items.append(f'<li><a href="#{_make_anchor(tag)}">{escape(tag)}</a>\n<ul>\n{links}</ul></li>\n')
    items += [f'<li><a href="#{name}">{name.capitalize()}</a></li>\n' for name in ("rules", "errors", "types")]
    return f'<nav aria-label="Contents">\n<ul>\n{"".join(items)}</ul>\n</nav>\n'


def _render_language_choice() -> str:
    choices = "".join(
        f'<label><input type="radio" name="api-language" id="api-{name.lower()}" aria-label="{name}"'
        f"{' checked' if name == LANGUAGES[0] else ''}>{name}</label>\n"
        for name in LANGUAGES
    )
    return f'<div class="api-bar"><fieldset><legend>Examples in</legend>{choices}</fieldset></div>\n'


def _render_start(document: Part, link: str) -> str:
    scheme = document["components"]["securitySchemes"]["credential"]
    operation = document["paths"]["/v1/{app}/_me"]["get"]
    samples = {sample["label"]: sample["source"] for sample in operation["x-codeSamples"]}
    programs = {name: text + samples.get(name, FIRST_PYTHON_CALL) for name, text in PROGRAM_STARTS.items()}
    return (
        f'<section id="start">\n<h2>Start</h2>\n<p>Every request carries a key in the {escape(scheme["in"])} '
        f"{_render_code(scheme['name'])}: {_render_text(scheme['description'])} {_render_text(KEY_HINT)}</p>\n"
        f"{_render_samples_and_answer(programs, '200', operation['responses']['200'])}"
        '<p class="api-quiet">All examples go on from '
        f'these lines. This page is made from the <a class="api-document" href="{escape(link)}">OpenAPI document</a>.'
        "</p>\n</section>\n"
    )


def _render_group(tag: Part, operations: Sequence[tuple[str, str, Part]], schemas: Part) -> str:
    details = "".join(
        _render_operation(*operation, schemas, is_open=number == 0 and tag["name"] in OPEN_GROUPS)
        for number, operation in enumerate(operations)
    )
    return (
        f'<h2 id="{_make_anchor(tag["name"])}">{escape(tag["name"])}</h2>\n'
        f"<p>{_render_text(tag['description'])}</p>\n{details}"
    )


def _render_operation(method: str, path: str, operation: Part, schemas: Part, *, is_open: bool) -> str:
    name, comma, more = operation["summary"].partition(",")
    about = f"<p>{_render_text(operation['description'])}</p>\n" if "description" in operation else ""
    answers = {status: answer for status, answer in operation["responses"].items() if "$ref" not in answer}
    links = ", ".join(
        f'<a href="#error-{status}">{status}</a>' for status in sorted(operation["responses"].keys() - answers.keys())
    )
    samples = {sample["label"]: sample["source"] for sample in operation["x-codeSamples"]}
    shown_status = next((status for status, answer in answers.items() if _find_example(answer)), next(iter(answers)))
    parameters = [
        (
            _render_code(p["name"]),
            ", ".join((escape(p["in"]), *_render_parameter_type(p))),
            [_render_text(p["description"])],
        )
        for p in operation["parameters"]
    ]
    return (
        f'<details class="api-operation"{" open" if is_open else ""}>\n<summary>{_render_method(method)}<span>'
        f'<strong>{_render_text(name)}</strong><span class="api-quiet">{comma}{_render_text(more)}</span> '
        f'<span class="api-path">{escape(path)}</span></span></summary>\n'
        f'<section id="{escape(operation["operationId"])}">\n{about}'
        f"{_render_samples_and_answer(samples, shown_status, answers[shown_status])}"
        f"{_render_fields('Parameters', parameters)}{_render_body(operation.get('requestBody'), schemas)}"
        f"{_render_answers(answers)}<p>Errors: {links}</p>\n</section>\n</details>\n"
    )


def _render_parameter_type(parameter: Part) -> list[str]:
    """Returns the type of a parameter, except in the path: a pattern of names or ids does not help a reader."""
    return [] if parameter["in"] == "path" else [_render_type(parameter["schema"])]


def _find_example(answer: Part) -> object:
    return next((body["example"] for body in answer.get("content", {}).values() if "example" in body), None)


def _render_samples_and_answer(samples: Mapping[str, str], status: str, answer: Part) -> str:
    tabs = "".join(f'<label for="api-{name.lower()}" aria-hidden="true">{name}</label>' for name in LANGUAGES)
    sources = "".join(
        _render_block(samples.get(name) or f"# The {name} client has no call for this.", f"api-{name.lower()}")
        for name in LANGUAGES
    )
    example = _find_example(answer)
    body = "" if example is None else example if isinstance(example, str) else indent_json(example)
    media = next((media for media, value in answer.get("content", {}).items() if "example" in value), "")
    return (
        f'<div class="api-pair">\n<div class="api-request"><p class="api-tabs">{tabs}</p>{sources}</div>\n'
        f'<div class="api-answer"><p><strong>{status}</strong> {escape(answer["description"])} <span class="api-quiet">'
        f"{escape(media)}</span></p>{_render_block(body) if body else ''}</div>\n</div>\n"
    )


def _render_block(text: str, css_class: str = "") -> str:
    """Returns a block of code. A long block scrolls, so the keyboard must be able to focus it."""
    attribute = f' class="{css_class}"' if css_class else ""
    rows = sum(len(line) // NARROW_COLUMNS + 1 for line in text.split("\n"))
    scrolls = ' tabindex="0"' if rows > MAX_ROWS else ""
    return f"<pre{attribute}{scrolls}>{colour_code(text)}</pre>"


def colour_code(code: str) -> str:
    """Returns JSON or a program as HTML, with a span around each key, string, number, literal and comment."""
    html, end = "", 0
    for token in TOKEN_PATTERN.finditer(code):
        html += f'{escape(code[end : token.start()])}<span class="{token.lastgroup}">{escape(token[0])}</span>'
        end = token.end()
    return html + escape(code[end:])


def _render_fields(title: str, fields: Iterable[tuple[str, str, Iterable[str]]]) -> str:
    items = "".join(
        f'<li><span>{name} <span class="api-quiet">{kind}</span></span>{_render_lines(abouts)}</li>\n'
        for name, kind, abouts in fields
    )
    head = f"<h3>{title}</h3>\n" if title else ""
    return f'{head}<ul class="api-fields">\n{items}</ul>\n' if items else ""


def _render_lines(lines: Iterable[str]) -> str:
    text = "<br>".join(lines)
    return f"<span>{text}</span>" if text else ""


def _render_body(body: Part | None, schemas: Part) -> str:
    if body is None:
        return ""
    types = dict.fromkeys(name for media in body["content"].values() for name in _find_type_names(media["schema"]))
    folded = "".join(
        f"<details><summary>Fields of {escape(name)}</summary>\n"
        f"{_render_properties(schemas[name], 'required')}</details>\n"
        for name in types
    )
    optional = "" if body["required"] else ", or nothing"
    return f"<h3>Body</h3>\n<p>{_render_content(body['content'])}{optional}</p>\n{folded}"


def _find_type_names(schema: Part) -> list[str]:
    if "$ref" in schema:
        return [schema["$ref"].rpartition("/")[2]]
    return [name for form in schema.get("anyOf", ()) for name in _find_type_names(form)]


def _render_answers(answers: Part, anchor: str = "") -> str:
    """Returns answers with their headers; with ``anchor``, without a title, and each with an id."""
    return _render_fields(
        "" if anchor else "Answers",
        [
            (
                f'<span id="{anchor}{status}">{status}</span>' if anchor else status,
                f"{escape(answer['description'])} {_render_content(answer.get('content', {}))}",
                [
                    f"{_render_code(name)}: {_render_text(header['description'])}"
                    for name, header in answer.get("headers", {}).items()
                ],
            )
            for status, answer in answers.items()
        ],
    )


def _render_content(content: Part) -> str:
    return ", ".join(f"{_render_code(media)} {_render_type(value['schema'])}" for media, value in content.items())


def _render_properties(schema: Part, word: str = "always there") -> str:
    """Returns the fields of a schema, or its type if it has none; ``word`` marks the required ones."""
    required = schema.get("required", ())
    fields = [
        (
            _render_code(name),
            f"{_render_type(value)}{f', {word}' if name in required else ''}",
            _find_descriptions(value),
        )
        for name, value in schema.get("properties", {}).items()
    ]
    return _render_fields("", fields) or f"<p>{_render_type(schema)}</p>\n"


def _render_schema(name: str, schema: Part) -> str:
    about = f"<p>{_render_text(schema['description'])}</p>\n" if "description" in schema else ""
    return (
        f'<details>\n<summary>{escape(name)}</summary>\n<section id="type-{escape(name)}">\n{about}'
        f"{_render_properties(schema)}</section>\n</details>\n"
    )


def _find_descriptions(schema: Part) -> list[str]:
    own = [_render_text(schema["description"])] if "description" in schema else []
    return own + [about for form in schema.get("anyOf", ()) for about in _find_descriptions(form)]


def _render_type(schema: Part) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_render_type, schema["anyOf"])))
    if "enum" in schema:
        words = " or ".join(_render_code(msgspec.json.encode(value).decode()) for value in schema["enum"])
    elif schema.get("type") == "array":
        words = f"list of {_render_type(schema.get('items', {}))}"
    elif "additionalProperties" in schema:
        values = schema["additionalProperties"]
        words = f"map of text to {_render_type(values if isinstance(values, Mapping) else {})}"
    else:
        kind = schema.get("type", "anything")
        words = TYPE_NAMES.get(kind, escape(kind))
    return ", ".join([words, *_render_limits(schema)])


def _render_limits(schema: Part) -> list[str]:
    limits = [
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
        limits.append(_render_code(schema["pattern"]))
    if schema.get("default") is not None:
        limits.append(f"default {_render_code(msgspec.json.encode(schema['default']).decode())}")
    return limits


def main() -> None:
    """Writes the page. With ``--check``, only fails if it is not up to date."""
    page = make_page()
    if "--check" not in sys.argv[1:]:
        RESULT.write_text(page)
    elif not RESULT.exists() or RESULT.read_text() != page:
        sys.exit(f"{RESULT.name}: not what is made from the OpenAPI document. Make it again: {COMMAND}")


if __name__ == "__main__":
    main()
