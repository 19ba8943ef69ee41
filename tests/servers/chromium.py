"""Chromium for tests of pages."""

from __future__ import annotations

import gc
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import platformdirs
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = "4.14.1"
NPM = shutil.which("npm")
PATIENCE = 30_000
"""Milliseconds. Long, because a busy machine is slow."""


@contextmanager
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
    with warnings.catch_warnings():
        # Playwright leaves its driver's process to the garbage collector, which would warn in another test.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@cache
def axe_core() -> str:
    """Returns the source of axe-core, downloaded once. Skips the test if that is not possible."""
    if NPM is None:
        pytest.skip("needs npm, which is not installed")
    directory = platformdirs.user_cache_path("queuey-tests") / f"axe-core-{AXE}"
    path = Path(directory / "node_modules" / "axe-core" / "axe.min.js")
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        command = [NPM, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(directory), f"axe-core@{AXE}"]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if completed.returncode:
            pytest.skip(f"axe-core could not be fetched: {completed.stderr[-300:]}")
    return path.read_text("utf-8")
