"""Contrast of the console's colours, computed from its style sheet, in both schemes (WCAG 2, level AA)."""

from __future__ import annotations

import re
from itertools import product
from typing import NamedTuple

import pytest

from queuey.console import pages

CSS = pages.FILES["console.css"].content.decode()
TOKEN = re.compile(r"^  --([\w-]+): light-dark\((#[0-9a-f]+), (#[0-9a-f]+)\);$", re.MULTILINE)
MIX = re.compile(r"background: color-mix\(in srgb, var\(--([\w-]+)\) (\d+)%, var\(--([\w-]+)\)\)")
TEXT, LARGE = 4.5, 3.0
"""Ratio of text, and of large text and the borders of controls, to what is behind it."""
STATES = ("done", "claimed", "retrying", "dead", "ok")
TEXTS = ("text", "quiet", "green", "literal", *STATES)
GROUNDS = ("ground", "raised")
SCHEMES = ("light", "dark")


class Colour(NamedTuple):
    red: float
    green: float
    blue: float

    @classmethod
    def parse(cls, text: str) -> Colour:
        """Reads ``#fff`` and ``#ffffff``."""
        digits = text[1:] if len(text) == 7 else "".join(digit * 2 for digit in text[1:])
        return cls(*(int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)))

    def mixed(self, percent: float, other: Colour) -> Colour:
        """Returns what ``color-mix(in srgb, …)`` does."""
        part = percent / 100
        return Colour(*(part * mine + (1 - part) * theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def luminance(self) -> float:
        """Relative luminance as WCAG defines it."""
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in self]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


TOKENS = {
    (scheme, name): Colour.parse(text)
    for name, *texts in TOKEN.findall(CSS)
    for scheme, text in zip(SCHEMES, texts, strict=True)
}


def ratio(one: Colour, other: Colour) -> float:
    """Returns the contrast of two colours."""
    dark, light = sorted((one.luminance, other.luminance))
    return (light + 0.05) / (dark + 0.05)


def test_the_ratio_is_that_of_the_guidelines() -> None:
    """Black on white is 21:1, and the grey that just passes is known."""
    assert ratio(Colour.parse("#000"), Colour.parse("#fff")) == pytest.approx(21)
    assert ratio(Colour.parse("#767676"), Colour.parse("#ffffff")) == pytest.approx(4.54, abs=0.01)


def test_every_colour_is_a_token_that_is_checked() -> None:
    """No rule has a colour of its own, and no token is left out below."""
    assert {name for _, name in TOKENS} == {*TEXTS, *GROUNDS, "line", "border", "on-green"}
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", TOKEN.sub("", CSS)) == []


@pytest.mark.parametrize(("scheme", "text", "ground"), list(product(SCHEMES, TEXTS, GROUNDS)))
def test_texts_on_grounds(scheme: str, text: str, ground: str) -> None:
    """Every colour of text can be read on the page and on cards."""
    assert ratio(TOKENS[scheme, text], TOKENS[scheme, ground]) >= TEXT


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
            behind = colours[word if name == "state" else name].mixed(float(percent), colours[base])
            assert ratio(colours[word], behind) >= TEXT, (name, percent, word)
