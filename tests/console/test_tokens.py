"""The console and the page of the API have one design: the same tokens with the same values."""

from __future__ import annotations

import re
from pathlib import Path

from queuey import console
from queuey.web import api_page


def tokens(style: str) -> dict[str, str]:
    return dict(re.findall(r"(--[a-z][\w-]*): ([^;]+);", style))


def test_tokens() -> None:
    """Each token of the page of the API has the value that it has in the console."""
    own = tokens(api_page.STYLE)
    theirs = tokens((Path(console.__file__).parent / "static" / "console.css").read_text())
    assert own.items() <= theirs.items()
    assert {"--green", "--text", "--ground", "--link", "--s6", "--t4"} <= own.keys()


def test_logo() -> None:
    """The picture at the top is the console's icon."""
    icon = (Path(console.__file__).parent / "static" / "icon.svg").read_text()
    assert re.findall(r' d="([^"]+)"', icon) == re.findall(r' d="([^"]+)"', api_page.LOGO)
