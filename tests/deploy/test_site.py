"""The documentation as a site."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.site import docstrings

ROOT = Path(__file__).parents[2]


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


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """A page of the site asks no other host for scripts, styles, fonts or pictures."""
    page = (site / "index.html").read_text()
    assert [mark for mark in ('src="http', 'src="//', 'rel="stylesheet" href="http', "fonts.g") if mark in page] == []


def test_examples() -> None:
    """The example of how docstrings are rewritten is true."""
    assert doctest.testmod(docstrings).failed == 0
