"""The examples of ``docs/api.md`` and related pages, played in order in each of three languages."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from queuey.app.service import App
from queuey.app.version_1 import OPERATIONS
from tests.app.alike import AnsweredValues, is_like, values_in
from tests.app.programs import install_client, make_operator_key, run_module
from tests.contract.samples import eventually
from tests.javascript.test_node import needs_node
from tests.pages import Block, Reader, blocks
from tests.servers.served import Served

PAGES = [f"docs/{name}" for name in ("api.md", "api-messages.md", "api-queues.md", "api-jobs.md", "api-groups.md")]
"""Pages in order: each goes on where the one before has ended."""
URL = "http://127.0.0.1:5000"
LANGUAGES = ["sh", "python", "javascript"]
SECONDS = 1
"""Seconds until an example that follows a queue is stopped."""
FILES = {"getApiPage", "getBrowserClient", "getBrowserClientTypes"}
"""Operations of pages and files, for browsers."""
FOR_OTHERS = {"v1.docs", "v1.client", "v1.client_types", "v1.applications"}
"""Routes for browsers and operators."""
FOR_OTHER_CLIENTS = {"v1.me", "v1.openapi", "v1.root"}
"""Routes that the Python client does not use."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served


def find_unused(app: App, served: Served) -> set[str]:
    """Returns the routes of the API without a successful answer so far; the counts may be a second old."""
    with urlopen(f"{served.profile.url}/metrics") as answer:
        text = answer.read().decode()
    used = re.findall(r'^queuey_requests_total\{route="(v1\.\w+)",status="2', text, re.MULTILINE)
    return {name for name in app.endpoints if name.startswith("v1.")} - FOR_OTHERS - set(used)


def every(*languages: str) -> list[tuple[str, Block]]:
    page_blocks = ((page, block) for page in PAGES for block in blocks(page))
    return [(page, block) for page, block in page_blocks if block.language in languages and not block.mark]


def requests_of(block: Block) -> Iterator[tuple[str, str]]:
    for line in re.findall(r"^curl .*?(?=^curl |\Z)", block.text, re.MULTILINE | re.DOTALL):
        words = shlex.split(line.replace("\\\n", ""))
        sends = any(word in {"-d", "--json"} for word in words)
        method = words[words.index("-X") + 1] if "-X" in words else "POST" if sends else "GET"
        [address] = [word for word in words if word.startswith(("$api", URL))]
        yield method, urlsplit(address.replace("$api", f"{URL}/v1/queuey")).path.rstrip("/") or "/"


def test_every_operation_is_shown() -> None:
    """There is a request by curl for each operation of the OpenAPI document."""
    shown = {request for _, block in every("sh") for request in requests_of(block)}
    missing = set()
    for operation in OPERATIONS:
        form = re.sub(
            r"\\\{(\w+)\\\}", lambda name: "queuey" if name[1] == "app" else "[^/]+", re.escape(operation.path)
        )
        if not any(method == operation.method and re.fullmatch(form, path) for method, path in shown):
            missing.add(operation.id)
    assert missing == FILES


def test_each_example_has_three_languages() -> None:
    """Examples come as curl, Python and JavaScript, in this order, which the site makes tabs of."""
    languages = [block.language for _, block in every(*LANGUAGES)]
    alone = {'curl "$api/_moves" -H "$auth"', 'curl "http://127.0.0.1:5000/v1/@all'}
    more = [block for _, block in every("sh") if block.text.startswith(tuple(alone))]
    assert len(languages) - len(more) == 3 * languages.count("python") == 3 * languages.count("javascript")


def test_curl(served: Served, tmp_path: Path) -> None:
    """Each command succeeds, and the last one of a block answers as the page shows below it."""
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    reader = Reader(served, tmp_path, CURL_HOME=str(tmp_path), OPERATOR=make_operator_key(served))
    answers, ran = AnsweredValues(), []
    [(_, first), *others] = every("sh", "json")
    output = ""
    for page, block in others:
        if block.language == "json":
            shown = json.loads(block.text)
            assert is_like(values_in(output)[-1], shown), f"{page}:{block.line} {output}"
            answers.learn(shown, values_in(output)[-1])
            continue
        text = answers.translate(first.text + block.text).replace(URL, served.profile.url)
        text = re.sub(r"^(curl -N .*)$", rf"timeout {SECONDS} \1 || test $? -eq 124", text, flags=re.MULTILINE)
        output = reader.run(page, Block("sh", text, block.line))
        ran.append(block)
    assert len(ran) > 20


def test_python(app: App, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs after those before it, and together they use every route."""
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
    names: dict[str, Any] = {}
    for page, block in every("python"):
        exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
    names["client"].close()
    assert eventually(lambda: find_unused(app, served) == FOR_OTHER_CLIENTS, 10), find_unused(app, served)


@needs_node
def test_javascript(app: App, served: Served, tmp_path: Path) -> None:
    """Each block runs after those before it in a module, and together they use every route."""
    install_client(tmp_path)
    lines: list[str] = []
    for number, (page, block) in enumerate(every("javascript")):
        lines += [f"{'{ ' if number else ''}// {page}:{block.line}"]
        lines += [*block.text.replace(URL, served.profile.url).splitlines(), "}" if number else ""]
    run_module(tmp_path, "\n".join(lines), str(served.profile.key))
    assert eventually(lambda: find_unused(app, served) == set(), 10), find_unused(app, served)
