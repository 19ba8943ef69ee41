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
"""Milliseconds: a busy machine is slow."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts a browser without windows."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()
    with warnings.catch_warnings():
        # Playwright leaves its driver's process to the garbage collector, which would complain in another test.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@cache
def axe_core() -> str:
    """Returns the program of axe-core, which is fetched once."""
    if NPM is None:
        pytest.skip("needs npm, which is not installed")
    place = platformdirs.user_cache_path("queuey-tests") / f"axe-core-{AXE}"
    found = Path(place / "node_modules" / "axe-core" / "axe.min.js")
    if not found.exists():
        place.mkdir(parents=True, exist_ok=True)
        command = [NPM, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(place), f"axe-core@{AXE}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"axe-core could not be fetched: {done.stderr[-300:]}")
    return found.read_text("utf-8")
