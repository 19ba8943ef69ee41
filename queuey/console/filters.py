"""Template filters for times, numbers, JSON and tables. Filters that return HTML escape everything else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from queuey.model.time_parsing import format_duration

MAX_COLOURED = 4000
"""Max coloured tokens of JSON: each is an element of the page."""
MAX_RELATIVE = 60 * 86_400
"""Max distance from now, in seconds, of times that are shown as distances."""
SPARK_WIDTH, SPARK_HEIGHT = 100, 20
_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*+(?:"|\\?\Z))(?P<colon>\s*+:)?|(?P<number>-?\d[\d.eE+-]*+)|(?P<literal>true|false|null)',
    re.DOTALL,
)
_CELL = re.compile(r"<tr\b|<td\b(?P<bare>>)?")


class Html(str):
    """Text that templates do not escape."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def moment_absolute(seconds: float | None) -> str:
    """Formats an instant, given in seconds since 1970, as date and time; 0 and None are ``never``.

    A year that dates cannot have gives the number of seconds.

    Example:
        >>> moment_absolute(1.5)
        '1970-01-01 00:00:01 UTC'
    """
    if not seconds:
        return "never"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since 1970"


def relative(seconds: float, now: float) -> str:
    """Formats an instant as its distance from now, or as its date if that is above :data:`MAX_RELATIVE`.

    Example:
        >>> relative(1000, 1420), relative(1720, 1420), relative(1420, 1420)
        ('7 min ago', 'in 5 min', 'now')
    """
    distance = round(now - seconds)
    if abs(distance) > MAX_RELATIVE:
        return moment_absolute(seconds)[:10]
    if not distance:
        return "now"
    return f"{format_duration(distance)} ago" if distance > 0 else f"in {format_duration(-distance)}"


def moment(seconds: float | None) -> str:
    """Formats an instant, given in seconds since 1970, as its distance from now, with date and time as tooltip.

    0, None and a year that dates cannot have give the plain text of :func:`moment_absolute`.
    """
    absolute = moment_absolute(seconds)
    if not seconds or not absolute.endswith("UTC"):
        return absolute
    machine = f"{absolute[:10]}T{absolute[11:19]}Z"
    return Html(f'<time datetime="{machine}" title="{absolute}">{relative(seconds, time.time())}</time>')


def size(count: float) -> str:
    """Formats a number of bytes for people.

    Example:
        >>> size(1536), size(12)
        ('1.5 KiB', '12 bytes')
    """
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"


def compact(number: float) -> str:
    """Formats a number with few digits, with all digits of a large number as tooltip.

    Example:
        >>> compact(9999), compact(12_345)
        ('9,999', '<span title="12,345">12.3k</span>')
    """
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 10 * scale or (unit != "k" and number >= scale):
            return Html(f'<span title="{number:,.0f}">{number / scale:.1f}{unit}</span>')
    return f"{number:,.0f}"


def coloured_json(text: str) -> str:
    """Returns JSON, which may be cut, as HTML with a colour for each type of value.

    After :data:`MAX_COLOURED` tokens, the rest has no colours.
    """
    pieces: list[str] = []
    end = 0
    for number, match in enumerate(_TOKEN.finditer(text)):
        if number == MAX_COLOURED:
            break
        kind = "k" if match["colon"] else {"string": "s", "number": "n", "literal": "l"}[match.lastgroup or ""]
        token = match["string"] or match[0]
        pieces += (escape(text[end : match.start()]), f'<span class="j{kind}">{escape(token)}</span>')
        end = match.start() + len(token)
    return Html("".join((*pieces, escape(text[end:]))))


def spark_paths(values: Sequence[float | None]) -> tuple[str, str]:
    """Returns the SVG paths of a small chart, scaled to its highest value: its area and its line.

    A missing value repeats the previous one, or is 0 at the beginning; a negative one is 0, and a single one is a flat
    line.
    """
    levels: list[float] = []
    for value in values:
        levels.append(max(0.0, value) if value is not None else levels[-1] if levels else 0.0)
    if len(levels) < 2:  # noqa: PLR2004 - no line has fewer points
        levels = [*levels, *levels] or [0.0, 0.0]
    highest, step = max(*levels, 1e-9), SPARK_WIDTH / (len(levels) - 1)
    heights = [SPARK_HEIGHT - 1 - (SPARK_HEIGHT - 2) * level / highest for level in levels]
    line = "M" + " L".join(f"{step * number:.4g},{height:.4g}" for number, height in enumerate(heights))
    return f"{line} L{SPARK_WIDTH},{SPARK_HEIGHT} L0,{SPARK_HEIGHT} Z", line


class ColumnHead(NamedTuple):
    """The head of a column: its text, the class of its cells, and the sort key of its link."""

    text: str
    kind: str = ""
    key: str = ""


def heads(columns: Iterable[str | tuple[str, ...]]) -> list[ColumnHead]:
    return [ColumnHead(column) if isinstance(column, str) else ColumnHead(*column) for column in columns]


class Sorting(NamedTuple):
    """The order of a list.

    Attributes:
        key: The sort key.
        down: Whether the order is descending.
        address: Returns the address of the list in another order.
    """

    key: str
    down: bool
    address: Callable[[str, bool], str]

    def link(self, head: ColumnHead) -> str:
        """Returns the address of the list sorted by a column; a further click reverses it. Numbers begin descending."""
        return self.address(head.key, not self.down if head.key == self.key else head.kind == "number")


def label_cells(rows: str, columns: Iterable[str | tuple[str, ...]]) -> str:
    """Adds the text of its head to each cell of rows, as narrow windows show rows as cards.

    A cell without attributes gets the head's class, too. A cell whose head has no text stays as it is.
    """
    of_cells: Iterator[ColumnHead] = iter(())

    def name(match: re.Match[str]) -> str:
        nonlocal of_cells
        if match[0] == "<tr":
            of_cells = iter(heads(columns))
            return "<tr"
        head = next(of_cells, ColumnHead(""))
        if not head.text:
            return match[0]
        kind = f' class="{head.kind}"' if match["bare"] and head.kind else ""
        return f'<td data-label="{escape(head.text)}"{kind}{match["bare"] or ""}'

    return Html(_CELL.sub(name, rows))
