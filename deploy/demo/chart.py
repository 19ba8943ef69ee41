"""A chart of the feed as SVG, made of nothing but text: for each network its notices per hour, by magnitude."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple
from xml.sax.saxutils import escape

CLASSES = (("below 1", "#bcd4e6"), ("1 to 2.5", "#6fa3cc"), ("2.5 to 4.5", "#e0a458"), ("4.5 and above", "#c0392b"))
BOUNDS = (1.0, 2.5, 4.5)
"""Magnitudes at which the second class and the ones after it begin."""
HOUR = 3600
PANELS = 8
"""Networks that are shown, the busiest first."""
_BAR, _HIGH, _LEFT, _TOP, _GAP = 5, 46, 90, 58, 14


class Hour(NamedTuple):
    """The number of a network's notices in an hour (its start in seconds since 1970) of one class of magnitude."""

    network: str
    hour: int
    magnitude: int
    notices: int


def draw(hours: Iterable[Hour]) -> str:
    """Returns the chart as SVG, with the ``PANELS`` networks that have the most notices.

    Each bar's height is to the scale of its own network's busiest hour, whose number of notices is written beside it.

    Args:
        hours: At least one.
    """
    cells: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    for network, hour, magnitude, count in hours:
        cells[network][hour, magnitude] += count
    first = min(hour for cell in cells.values() for hour, _ in cell)
    last = max(hour for cell in cells.values() for hour, _ in cell)
    shown = sorted(cells, key=lambda network: (-cells[network].total(), network))[:PANELS]
    width = _LEFT + ((last - first) // HOUR + 1) * _BAR + 60
    height = _TOP + len(shown) * (_HIGH + _GAP) + 30
    whole = sum(cell.total() for cell in cells.values())
    font = 'font-family="sans-serif" font-size="11" fill="#333"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{whole:,} notices of earthquakes, by network and hour (UTC)</text>',
        *_legend(),
    ]
    bottom = _TOP + len(shown) * (_HIGH + _GAP)
    parts += _days(first, last, bottom)
    for place, network in enumerate(shown):
        parts += _panel(network, cells[network], first, last, _TOP + place * (_HIGH + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts = []
    for number, (name, colour) in enumerate(CLASSES):
        x = _LEFT + number * 120
        parts.append(f'<rect x="{x}" y="32" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="41">{escape(name)}</text>')
    return parts


def _days(first: int, last: int, bottom: int) -> list[str]:
    parts = []
    day = 24 * HOUR
    for start in range(-(-first // day) * day, last + 1, day):
        x = _LEFT + (start - first) // HOUR * _BAR
        parts.append(f'<line x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{bottom}" stroke="#ddd"/>')
        name = datetime.fromtimestamp(start, UTC).strftime("%d %b %Y")
        parts.append(f'<text x="{x + 3}" y="{bottom + 12}">{name}</text>')
    return parts


def _panel(network: str, cell: Counter[tuple[int, int]], first: int, last: int, top: int) -> list[str]:
    totals: Counter[int] = Counter()
    for (hour, _), count in cell.items():
        totals[hour] += count
    most = max(totals.values())
    end = _LEFT + ((last - first) // HOUR + 1) * _BAR
    parts = [
        f'<text x="8" y="{top + 18}" font-size="13">{escape(network)}</text>',
        f'<text x="8" y="{top + 34}" fill="#777">{cell.total():,}, most {most}</text>',
        f'<line x1="{_LEFT}" y1="{top + _HIGH}" x2="{end}" y2="{top + _HIGH}" stroke="#bbb"/>',
    ]
    for hour in sorted(totals):
        x, y = _LEFT + (hour - first) // HOUR * _BAR, float(top + _HIGH)
        for number, (_, colour) in enumerate(CLASSES):
            count = cell[hour, number]
            if count:
                high = count / most * _HIGH
                y -= high
                parts.append(f'<rect x="{x}" y="{y:.1f}" width="{_BAR - 1}" height="{high:.1f}" fill="{colour}"/>')
    return parts
