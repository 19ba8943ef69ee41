"""Chromium for tests of pages."""

from __future__ import annotations

import gc
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
