"""Contrast of two colours, as WCAG 2 computes it."""

from __future__ import annotations

from typing import NamedTuple

TEXT, LARGE = 4.5, 3.0
"""Min contrast with the background at level AA: of text, and of large text and the borders of controls."""


class Colour(NamedTuple):
    """A colour in sRGB, each component from 0 to 1."""

    red: float
    green: float
    blue: float

    @classmethod
    def parse(cls, text: str) -> Colour:
        digits = text[1:] if len(text) == 7 else "".join(digit * 2 for digit in text[1:])
        return cls(*(int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)))

    def mix(self, percent: float, other: Colour) -> Colour:
        """Returns ``percent`` of this colour mixed with the other one, as ``color-mix(in srgb, …)`` does."""
        part = percent / 100
        return Colour(*(part * mine + (1 - part) * theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def luminance(self) -> float:
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in self]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ratio(one: Colour, other: Colour) -> float:
    dark, light = sorted((one.luminance, other.luminance))
    return (light + 0.05) / (dark + 0.05)
