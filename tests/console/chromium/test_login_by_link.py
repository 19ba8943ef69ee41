"""The link that a start prints at a terminal, opened in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.chromium.seeing import Watched, find_accessibility_violations
from tests.servers.terminal import terminal


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    with terminal(tmp_path, "--workers", "2") as served:
        yield served.wait_for_lines(3)[1].removeprefix("Console: ")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_link_logs_a_browser_in_once(chromium: Browser, link: str, axe: str, scripts: bool) -> None:  # noqa: FBT001
    """It opens a page with one button, which leads to the console, with scripts and without; a second use does not."""
    requested: list[tuple[str, str | None]] = []
    with closing(chromium.new_context(java_script_enabled=scripts, viewport={"width": 375, "height": 700})) as context:
        page = context.new_page()
        page.on("request", lambda sent: requested.append((sent.url, sent.all_headers().get("referer"))))
        watched = Watched(page, link.partition("/login")[0])
        page.goto(link)
        if scripts:
            assert find_accessibility_violations(page, axe) == []
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("key of queuey")).to_be_visible()
        assert "/login" not in page.url
        assert watched.troubles == []
        page.goto(link)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("used before")
    token = link.rpartition("/")[2]
    assert [url for url, referrer in requested if token in (referrer or "")] == []
