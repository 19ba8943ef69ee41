"""Contrast of the console's colours, computed from its style sheet, in both schemes (WCAG 2, level AA)."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from deploy.api_page import LOGO
from queuey import console
from queuey.app import file_views
from queuey.console import pages
from tests.contrast import LARGE, TEXT, Colour, ratio

CSS = pages.FILES["console.css"].content.decode()
TOKEN = re.compile(r"^  --([\w-]+): light-dark\((#[0-9a-f]+), (#[0-9a-f]+)\);$", re.MULTILINE)
MIX = re.compile(r"background: color-mix\(in srgb, var\(--([\w-]+)\) (\d+)%, var\(--([\w-]+)\)\)")
STATES = ("done", "claimed", "retrying", "dead", "ok")
TEXTS = ("text", "quiet", "green", "literal", *STATES)
GROUNDS = ("ground", "raised")
SCHEMES = ("light", "dark")


TOKENS = {
    (scheme, name): Colour.parse(text)
    for name, *texts in TOKEN.findall(CSS)
    for scheme, text in zip(SCHEMES, texts, strict=True)
}


def test_the_ratio_is_that_of_the_guidelines() -> None:
    """Black on white is 21:1, and the grey that just passes is known."""
    assert ratio(Colour.parse("#000"), Colour.parse("#fff")) == pytest.approx(21)
    assert ratio(Colour.parse("#767676"), Colour.parse("#ffffff")) == pytest.approx(4.54, abs=0.01)


def test_every_colour_is_a_token_that_is_checked() -> None:
    """No rule has a colour of its own, and no token is left out below."""
    assert {name for _, name in TOKENS} == {*TEXTS, *GROUNDS, "line", "border", "on-green"}
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", TOKEN.sub("", CSS)) == []


def test_texts_on_grounds() -> None:
    """Every colour of text can be read on the page and on cards."""
    for scheme, text, ground in product(SCHEMES, TEXTS, GROUNDS):
        assert ratio(TOKENS[scheme, text], TOKENS[scheme, ground]) >= TEXT, (scheme, text, ground)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_buttons_badges_and_borders(scheme: str) -> None:
    """Words on buttons and badges can be read, also under the pointer, and controls have a border that is seen."""
    colours = {name: colour for (where, name), colour in TOKENS.items() if where == scheme}
    assert ratio(colours["on-green"], colours["green"]) >= TEXT
    assert ratio(colours["raised"], colours["dead"]) >= TEXT
    for ground in GROUNDS:
        assert ratio(colours["border"], colours[ground]) >= LARGE
    words = {"state": STATES, "text": TEXTS, "dead": ("dead",), "green": ("on-green",)}
    mixes = MIX.findall(CSS)
    assert {name for name, _, _ in mixes} == words.keys()
    for name, percent, base in mixes:
        for word in words[name]:
            behind = colours[word if name == "state" else name].mix(float(percent), colours[base])
            assert ratio(colours[word], behind) >= TEXT, (name, percent, word)


# The console and the page of the API have one design: the same tokens with the same values


def tokens(style: str) -> dict[str, str]:
    return dict(re.findall(r"(--[a-z][\w-]*): ([^;]+);", style))


def test_tokens() -> None:
    """Each token of the page of the API has the value that it has in the console."""
    own = tokens(file_views.STYLE)
    theirs = tokens((Path(console.__file__).parent / "static" / "console.css").read_text())
    assert own.items() <= theirs.items()
    assert {"--green", "--text", "--ground", "--link", "--s6", "--t4"} <= own.keys()


def test_logo() -> None:
    """The picture at the top is the console's icon."""
    icon = (Path(console.__file__).parent / "static" / "icon.svg").read_text()
    assert re.findall(r' d="([^"]+)"', icon) == re.findall(r' d="([^"]+)"', LOGO)
