"""What the site's build does with pages that stand outside ``docs``, and with links to files that are no pages.

MkDocs calls these functions by their names.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.structure.files import File

from deploy import api_page
from queuey.app import file_views
from queuey.app.version_1 import document
from queuey.web.responses import encode

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "deploy/local/README.md": "local-servers.md",
    "queuey/console/static/icon.svg": "logo.svg",
    "deploy/site/iframe-worker.js": "assets/iframe-worker.js",
    "deploy/site/site.css": "assets/site.css",
}
"""Pages and files outside of ``docs``, and their names on the site (MkDocs takes a README for its folder's first page).
"""
API = "reference/http.md"
"""The page made from the OpenAPI document, which is beside it."""
PARTS = {
    "api.md": ("api-",),
    "architecture-claims.md": ("architecture-claims-",),
    "index.md": ("all-pages", "readme"),
    "measurements/sqlite.md": ("measurements/sqlite-",),
    "reference/client.md": ("reference/client-",),
    "reference/qdo.md": ("reference/qdo-",),
}
"""Pages that were one with others once, and how the names of these begin: addresses of their sections still lead there.
"""
BACKGROUND = (
    "all-pages",
    "architecture",
    "changelog",
    "contributing",
    "decisions/",
    "local-",
    "measurements/",
    "readme",
    "reference/",
    "walk-",
)
"""How the names of pages begin that the search lists behind those for users."""
KEYWORDS = {
    "access.md": "api key, authentication, authorization, permissions, rights",
    "api-messages.md": "cursor, delayed message, early, idempotency key, long poll, retention, stream, ttl",
    "claims.md": "acknowledge, claim, job queue, visibility timeout",
    "claims-kinds.md": "dedup, fifo, ordered, ordering",
    "claims-limits.md": "concurrency, limits",
    "claims-loop.md": "handler, priority, progress",
    "claims-operations.md": "cancel, pause",
    "claims-retries.md": "dead letter, poison message, retries, retry",
    "client.md": "asyncio, python",
    "concepts.md": "horizon, offset, partition, read delay",
    "console.md": "login, web interface",
    "groups.md": "consumer group, fence, heartbeat, rebalance, session",
    "inbox.md": "browser, cors, javascript, notification, server-sent events, stream, websocket",
    "kubernetes.md": "docker, helm",
    "operations.md": "backup, logging, metrics, monitoring, prometheus, proxy, restore, upgrade",
    "performance.md": "benchmark, latency, scale, sizing, throughput",
    "qdo-cli.md": "dead letter, exit code, lag, redrive",
    "qdo.md": "at least once, consumer group, fence, handler, lag, offset, rebalance, retry, worker, zookeeper",
    "schedules.md": "cron, schedule",
    "settings.md": "configuration, environment variable, message size, rate limit, timeout",
    "spark.md": "exactly once",
    "tasks.md": "celery, opentelemetry, progress, retry",
    "users.md": "inbox, login, openid, unread",
}
"""Words by which the search finds a page first."""
MARK = re.compile(r"^( *```\w+) \w+$", re.MULTILINE)
"""Why no test runs a block: it stands behind the language, where the site's Markdown would not take it."""
BLOCK = r"^```{}\n((?:(?!```).*\n)*)```$"
TABS = re.compile("\n\n".join(map(BLOCK.format, ("sh", "python", "javascript"))), re.MULTILINE)
"""An example in three languages."""
TABLE = re.compile(r"<table>\s*<thead>(.*?)</thead>(.*?)</table>", re.DOTALL)
CELL = re.compile(r"<td(?P<attributes>[^>]*)>(?P<text>.*?)</td>", re.DOTALL)
FIGURE = re.compile(r"[\d.,]+( \S{1,4})?")
"""A number, perhaps with its unit."""
CARD_COLUMNS, MATRIX_COLUMNS = 3, 9
"""From how many columns on a table's rows are cards on a small screen, and from how many on its heads stand upright."""
ANCHOR = re.compile(r'<h[2-6] id="([^"]+)"')
FOLLOW = """{
  const moved = MOVED, id = decodeURIComponent(location.hash.slice(1));
  const page = Object.keys(moved).find((page) => moved[page].includes(id));
  if (page) location.replace(`${page}#${id}`);
}"""
"""Opens the page that has the section which the address names."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:  # noqa: ANN401 -- mkdocs has no types for plugins
    """Lists the decisions by number, adds styles, and links the repository if ``pyproject.toml`` names it."""
    config.extra_css += ["assets/api_page.css", "assets/site.css"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Repository")
    names = {path.name for path in (ROOT / "docs" / "decisions").glob("*.md")}
    decisions = ["index.md", "libraries.md", *sorted(names - {"index.md", "libraries.md"})]
    for section in config.nav:
        for entry in next(iter(section.values())):
            if isinstance(entry, dict) and entry.get("Decisions") == "decisions":
                entry["Decisions"] = [f"decisions/{name}" for name in decisions]
    return config


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401
    """Adds the pages outside of ``docs``, the OpenAPI document, and its page and style.

    Only some sections of the README are added, as a page "First steps".
    """
    made: dict[str, str] = {name: (ROOT / path).read_text() for path, name in OUTSIDE.items()}
    made["readme.md"] = "# First steps\n\n" + "".join(_find_sections(made["readme.md"], "Start", "Run", "Features"))
    made[API] = "# HTTP API, operation by operation\n"
    made["reference/openapi.json"] = encode(document()).decode()
    made["assets/api_page.css"] = file_views.STYLE
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def _find_sections(text: str, *names: str) -> Iterator[str]:
    for name in names:
        yield from re.findall(rf"^## {name}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)


def on_page_content(html: str, page: Any, **_: object) -> str:  # noqa: ANN401
    """Adds the operations to the page of the API, and prepares tables of all pages for small screens."""
    html = TABLE.sub(_prepare_table, html)
    return html + api_page.render_contents(document(), "openapi.json") if page.file.src_uri == API else html


def on_env(env: Any, files: Any, **_: object) -> Any:  # noqa: ANN401
    """Adds to each page of ``PARTS`` a script that follows addresses of sections that stand on another page now."""
    pages = {file.src_uri: file.page for file in files.documentation_pages()}
    for name, beginnings in PARTS.items():
        anchors = {other: set(ANCHOR.findall(pages[other].content)) for other in pages if other.startswith(beginnings)}
        here = set(ANCHOR.findall(pages[name].content))
        moved = {
            relpath(pages[other].file.dest_uri, dirname(name) or "."): sorted(ids - here)
            for other, ids in anchors.items()
        }
        pages[name].content += f"<script>{FOLLOW.replace('MOVED', json.dumps(moved))}</script>"
    return env


def _plain(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html).replace('"', "&quot;").strip()


def _prepare_table(match: re.Match[str]) -> str:
    """Names the column in each cell, and repeats the name of a row in the rows that go on with it."""
    heads = [_plain(head) for head in re.findall(r"<th[^>]*>(.*?)</th>", match[1], re.DOTALL)]
    kind = "matrix" if len(heads) >= MATRIX_COLUMNS else "rows stack" if len(heads) >= CARD_COLUMNS else "rows"
    name = ""

    def row(line: re.Match[str]) -> str:
        nonlocal name
        cells = [(cell["attributes"], cell["text"]) for cell in CELL.finditer(line[0])]
        same = f' data-same="{name}"' if name and cells and not cells[0][1] else ""
        name = _plain(cells[0][1]) if cells and cells[0][1] else name
        labels = [same, *(f' data-label="{head}"' if head else "" for head in heads[1:])]
        kinds = [' class="figure"' if FIGURE.fullmatch(text) else "" for _, text in cells]
        shown = (
            f"<td{attributes}{kind}{label}>{text}</td>\n"
            for (attributes, text), kind, label in zip(cells, kinds, labels, strict=True)
        )
        return f"{line[1]}\n{''.join(shown)}</tr>"

    body = re.sub(r"(<tr[^>]*>).*?</tr>", row, match[2], flags=re.DOTALL)
    focus = ' tabindex="0"' if kind == "matrix" else ""
    return f'<div class="wide"{focus}><table class="{kind}">\n<thead>{match[1]}</thead>{body}</table></div>'


def _make_tabs(match: re.Match[str]) -> str:
    languages = (("curl", "sh"), ("Python", "python"), ("JavaScript", "javascript"))
    tabs = (
        f'=== "{name}"\n\n```{kind}\n{text}```\n' for (name, kind), text in zip(languages, match.groups(), strict=True)
    )
    return "\n".join(re.sub(r"^(?!===)(?=.)", "    ", tab, flags=re.MULTILINE) for tab in tabs)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401
    """Turns links between files into links between pages, and examples in three languages into tabs.

    A link to a file that is not a page becomes plain text. Also sets the page's keywords, and its rank in the search.
    """
    here = page.file.src_uri
    if here.startswith(BACKGROUND):
        page.meta["search"] = {"boost": 0.01}
    if here == "index.md":
        page.meta |= {"hide": ["navigation", "toc"], "search": {"exclude": True}}
    if here == API:
        page.meta["hide"] = ["toc"]
    page.meta["tags"] = KEYWORDS[here].split(", ") if here in KEYWORDS else []
    source = next((path for path, name in OUTSIDE.items() if name == here), f"docs/{here}")

    def link(match: re.Match[str]) -> str:
        picture, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if ":" in target:
            return match[0]
        path = normpath(f"{dirname(source)}/{target}") if dirname(source) else normpath(target)
        site = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if site is None:
            return text if (ROOT / path).exists() else match[0]
        return f"{picture}[{text}]({relpath(site, dirname(here) or '.')}{anchor})"

    return LINK.sub(link, TABS.sub(_make_tabs, MARK.sub(r"\1", markdown)))
