"""The documentation as a site."""

from __future__ import annotations

import doctest
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import FloatRect

from deploy.site import docstrings
from deploy.site.pages import BACKGROUND, KEYWORDS, OUTSIDE
from tests.pages import blocks
from tests.servers import chromium

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
WANTED = {
    "api key": "access",
    "at least once": "qdo",
    "authentication": "access",
    "backup": "operations",
    "benchmark": "performance",
    "claim": "claims",
    "celery": "moving-from-celery",
    "consumer group": "qdo",
    "cron": "schedules",
    "cursor": "api-messages",
    "dead letter": "claims-retries",
    "dedup": "claims-kinds",
    "delayed message": "api-messages",
    "docker": "kubernetes",
    "exactly once": "spark",
    "fifo": "claims-kinds",
    "horizon": "concepts",
    "idempotency key": "api-messages",
    "inbox": "inbox",
    "install": "install",
    "javascript": "inbox",
    "kafka": "qdo-migration",
    "lag": "qdo",
    "login": "console",
    "long poll": "api-messages",
    "metrics": "operations",
    "move messages": "moves",
    "ordered queue": "claims-kinds",
    "priority": "claims-loop",
    "python client": "client",
    "rate limit": "settings",
    "read delay": "concepts",
    "redrive": "qdo-cli",
    "restore": "operations",
    "retry": "claims-retries",
    "sqs": "compat/sqs",
    "stream": "api-messages",
    "tls": "operations",
    "unread": "users",
    "visibility timeout": "claims",
    "websocket": "inbox",
    "zookeeper": "qdo",
}
"""Queries, and a page that a reader wants to see among the first three."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: strictly."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", "deploy/site/mkdocs.yml"]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(
        [*build, "-d", folder],
        cwd=ROOT,
        env=quiet,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    return folder


def test_every_page_has_a_place(site: Path) -> None:
    """Each page of the documentation is on the site, and so are the pages that stand elsewhere."""
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).with_suffix(".html") for page in docs.rglob("*.md")}
    pages |= {Path(name) for name in ("readme.html", "changelog.html", "contributing.html", "local-servers.html")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_reference(site: Path) -> None:
    """The reference has what the packages export, and nothing of the marks that docstrings have."""
    page = (site / "reference" / "client.html").read_text()
    assert 'id="queuey.client.Client.send"' in page
    assert ":class:" not in page


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_search(site: Path) -> None:
    """The site's search lists what a reader wants to see among the first three pages."""
    queries = "\n".join(WANTED)
    script = Path(__file__).with_name("search.js")
    ended = subprocess.run([str(NODE), script, site], input=queries, capture_output=True, check=True, text=True)
    found = dict(zip(WANTED, map(json.loads, ended.stdout.splitlines()), strict=True))
    assert {query: found[query][:5] for query, page in WANTED.items() if f"{page}.html" not in found[query][:3]} == {}


def test_words_for_the_search_are_of_pages() -> None:
    """The search's words and its pages in the background name pages that there are."""
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} | set(OUTSIDE.values())
    assert KEYWORDS.keys() - docs == set()
    assert {part for part in BACKGROUND if not any(page.startswith(part) for page in docs)} == set()


@pytest.mark.skipif(chromium.CHROMIUM is None, reason="needs Chromium")
def test_without_a_server(site: Path) -> None:
    """Opened as files, the site searches, and its pictures follow the palette that the reader picks."""
    with chromium.chromium() as browser:
        page = browser.new_page(color_scheme="dark", viewport={"width": 1300, "height": 900})
        page.goto((site / "concepts.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("priority")
        page.locator(".md-search-result__link[href*='claims-loop.html']").first.wait_for(timeout=chromium.PATIENCE)
        page.keyboard.press("Escape")
        picture = page.locator("img[src='read-delay.svg']")
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        assert box is not None
        middle = FloatRect(x=box["x"] + 20, y=box["y"] + 20, width=box["width"] - 40, height=box["height"] - 40)
        dark = page.screenshot(clip=middle)
        page.get_by_title("Light").click()
        page.locator("body[data-md-color-scheme=default]").wait_for(timeout=chromium.PATIENCE)
        assert page.screenshot(clip=middle) != dark


def test_examples_in_three_languages_are_tabs(site: Path) -> None:
    """Each example of the API has a tab for curl, Python and JavaScript, with its block inside."""
    total = 0
    for name in ("api", "api-messages", "api-queues", "api-jobs", "api-groups"):
        page = (site / f"{name}.html").read_text()
        examples = [block for block in blocks(f"docs/{name}.md") if block.language == "python"]
        total += len(examples)
        assert page.count('class="tabbed-set') == len(examples)
        assert page.count('class="tabbed-block"') == 3 * len(examples)
        assert "```" not in page
    assert total > 20


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """A page of the site asks no other host for scripts, styles, fonts or pictures."""
    page = (site / "index.html").read_text()
    assert [mark for mark in ('src="http', 'src="//', 'rel="stylesheet" href="http', "fonts.g") if mark in page] == []


def test_examples() -> None:
    """The example of how docstrings are rewritten is true."""
    assert doctest.testmod(docstrings).failed == 0
