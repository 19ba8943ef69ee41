"""The documentation as a site."""

from __future__ import annotations

import doctest
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, FloatRect

import qdo
import queuey.client
from deploy.site import docstrings
from deploy.site.pages import BACKGROUND, KEYWORDS, OUTSIDE
from tests.console.chromium.seeing import COLOR_RULES, find_accessibility_violations
from tests.pages import blocks
from tests.servers import chromium
from tests.servers.processes import run_to_end

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
WANTED = {
    "api key": "access",
    "celery": "moving-from-celery",
    "cron": "schedules",
    "dead letter": "claims-retries",
    "idempotency key": "api-messages",
    "javascript": "inbox",
    "kafka": "moving-from-kafka",
    "priority": "claims-loop",
    "redrive": "qdo-cli",
    "sqs": "compat/sqs",
    "visibility timeout": "claims",
}
"""Queries, and a page that must be among the first three results."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly, as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", "deploy/site/mkdocs.yml"]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = run_to_end([*build, "-d", folder], cwd=ROOT, env=quiet)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium.CHROMIUM is None:
        pytest.skip("needs Chromium, which is not installed")
    with chromium.chromium() as running:
        yield running


def test_every_page_has_a_place(site: Path) -> None:
    """Each page of the documentation is on the site, and so are the pages from other folders."""
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).with_suffix(".html") for page in docs.rglob("*.md")}
    pages |= {Path(name) for name in ("readme.html", "changelog.html", "contributing.html", "local-servers.html")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_reference(site: Path) -> None:
    """The reference has what the packages export, and nothing of the marks that docstrings have."""
    for package in (queuey.client, qdo):
        module = package.__name__.rpartition(".")[2]
        text = "".join(page.read_text() for page in (site / "reference").glob(f"{module}*.html"))
        names = [f"{package.__name__}.{name}" for name in package.__all__]
        assert {name: text.count(f'id="{name}"') for name in names if text.count(f'id="{name}"') != 1} == {}
        assert 'class="highlight"' in text
        assert [mark for mark in (":class:", "Annotated[", "&gt;&gt;&gt;</p>") if mark in text] == []
    assert 'id="queuey.client.Client.send"' in (site / "reference" / "client.html").read_text()


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_search(site: Path) -> None:
    """The site's search lists what a reader wants to see among the first three pages."""
    queries = "\n".join(WANTED)
    script = Path(__file__).with_name("search.js")
    ended = subprocess.run([str(NODE), script, site], input=queries, capture_output=True, check=True, text=True)
    hits = dict(zip(WANTED, map(json.loads, ended.stdout.splitlines()), strict=True))
    assert {query: hits[query][:5] for query, page in WANTED.items() if f"{page}.html" not in hits[query][:3]} == {}


def test_words_for_the_search_are_of_pages() -> None:
    """The search's words and its pages in the background name pages that there are."""
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} | set(OUTSIDE.values())
    assert KEYWORDS.keys() - docs == set()
    assert {part for part in BACKGROUND if not any(page.startswith(part) for page in docs)} == set()


def test_without_a_server(site: Path, browser: Browser) -> None:
    """Opened as files, the site searches, and its pictures follow the palette that the reader picks."""
    with closing(browser.new_context(color_scheme="dark", viewport={"width": 1300, "height": 900})) as context:
        page = context.new_page()
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


LONGEST, SMALL, PARTS = 20_000, 375, 8
"""Max height of a page (px) in a window 1,280 px wide; width of a telephone (px); number of tests for all pages."""
UNDER_BUTTONS = """() => [...document.querySelectorAll(".md-code__nav")].filter(nav => {
  const button = nav.getBoundingClientRect(), code = nav.closest("pre, .highlight").querySelector("code");
  const text = document.createRange();
  text.selectNodeContents(code);
  const lines = [...text.getClientRects()].filter(line => line.width > 0 && line.width < code.clientWidth - 40);
  return code.scrollWidth > code.clientWidth
    || lines.some(line => line.right > button.left && line.bottom > button.top && line.top < button.bottom);
}).map(nav => nav.closest("pre, .highlight").textContent.slice(0, 60))"""
"""Finds code with a line that is cut, or lies below the button that copies it."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_page_is_too_long_or_too_wide(site: Path, browser: Browser, part: int) -> None:
    """No page is higher than 20,000 pixels, and none scrolls sideways on a telephone."""
    sizes = {}
    files = sorted(site.rglob("*.html"))
    with closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        for file in files[part::PARTS]:
            page.set_viewport_size({"width": 1280, "height": 900})
            page.goto(file.as_uri())
            height = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": SMALL, "height": 800})
            sizes[str(file.relative_to(site))] = height, page.evaluate("document.documentElement.scrollWidth")
    assert len(files) > 100
    assert {name: size for name, size in sizes.items() if size[0] > LONGEST or size[1] > SMALL} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "tasks", "api-messages", "settings", "access", "reference/client-jobs"])
def test_colours_and_code(site: Path, browser: Browser, name: str, scheme: Literal["light", "dark"]) -> None:
    """On pages of all kinds, axe-core finds no text of too little contrast, and no code is cut or below a button."""
    with closing(browser.new_context(color_scheme=scheme)) as context:
        page = context.new_page()
        for width in (SMALL, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto((site / f"{name}.html").as_uri())
            page.locator(".md-code__nav").first.wait_for(state="attached", timeout=chromium.PATIENCE)
            assert page.evaluate(UNDER_BUTTONS) == []
        assert find_accessibility_violations(page, chromium.axe_core(), COLOR_RULES) == []


def test_addresses_of_pages_that_were_one(site: Path, browser: Browser) -> None:
    """The address of a section that stands on another page now leads there."""
    moved = {
        "api.html#streams": "api-messages.html#streams",
        "architecture-claims.html#dedup-queues": "architecture-claims-jobs.html#dedup-queues",
        "index.html#learn-it": "all-pages.html#learn-it",
        "reference/client.html#queuey.client.Token": "reference/client-more.html#queuey.client.Token",
        "reference/client.html#queuey.client.Client.send": "reference/client.html#queuey.client.Client.send",
        "reference/qdo.html#qdo.Worker": "reference/qdo-workers.html#qdo.Worker",
    }
    with closing(browser.new_context()) as context:
        page = context.new_page()
        for old, new in moved.items():
            page.goto((site / "404.html").as_uri())
            page.goto(f"{site.as_uri()}/{old}")
            page.wait_for_url(f"{site.as_uri()}/{new}", timeout=chromium.PATIENCE)


def test_tables_are_cards_on_telephones(site: Path) -> None:
    """Each cell of a table with three columns names its column; a table of very many columns has upright heads."""
    page = (site / "settings.html").read_text()
    assert '<td data-label="default"><code>5000</code></td>' in page
    assert '<table class="matrix">' in (site / "access.html").read_text()
    assert 'data-same="post 100 messages a request"' in (site / "performance.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """A page of the site asks no other host for scripts, styles, fonts or pictures."""
    page = (site / "index.html").read_text()
    assert [mark for mark in ('src="http', 'src="//', 'rel="stylesheet" href="http', "fonts.g") if mark in page] == []


def test_examples() -> None:
    """The example of how docstrings are rewritten is true."""
    assert doctest.testmod(docstrings).failed == 0
