"""Filters and macros of pages: times, numbers, JSON in colours, tables, small charts. All output is escaped."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.console import filters, pages

DAY = 86_400.0


class Spans(HTMLParser):
    """Parses HTML, and fails at any element but a span of a colour."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.count = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        [(name, value)] = attrs
        assert (tag, name) == ("span", "class")
        assert value in {"jk", "js", "jn", "jl"}
        self.count += 1

    def handle_data(self, data: str) -> None:
        self.text += data


def render_source(source: str, **values: object) -> str:
    return pages._environment().from_string(source).render(values)


@pytest.mark.parametrize(
    ("distance", "text"),
    [
        (0, "now"),
        (12, "12 s ago"),
        (5 * 3600, "5 h ago"),
        (-300, "in 5 min"),
        (200 * DAY, "2023-04-28"),
        (-200 * DAY, "2024-06-01"),
    ],
)
def test_relative_times(distance: float, text: str) -> None:
    """A time near now is shown as a distance, another one as a date."""
    now = 1_700_000_000
    assert filters.relative(now - distance, now) == text


def test_a_moment_has_the_absolute_time() -> None:
    """The pointer and machines get the time itself; what no calendar has is a number."""
    html = render_source("{{ at | moment }}", at=time.time() - 600)
    assert re.fullmatch(
        r'<time datetime="\d{4}-\d\d-\d\dT[\d:]{8}Z" title="\d{4}-\d\d-\d\d [\d:]{8} UTC">10 min ago</time>', html
    )
    assert (
        render_source("{{ 0 | moment }} {{ none | moment }} {{ 1e18 | moment }}")
        == "never never 1000000000000000000 s since 1970"
    )
    assert render_source("{{ 1.5 | moment_absolute }}") == "1970-01-01 00:00:01 UTC"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (9999, "9,999"), (12_345, "12.3k"), (1_500_000, "1.5M"), (2_000_000_000, "2.0G")]
)
def test_compact_numbers(number: int, text: str) -> None:
    """A large number has few digits, and all of them under the pointer."""
    html = render_source("{{ number | compact }}", number=number)
    assert re.sub(r"<[^>]*>", "", html) == text
    assert (f'title="{number:,}"' in html) is (text != f"{number:,}")


def test_colours_of_json() -> None:
    """Keys, strings, numbers and literals have each a class of their own."""
    html = filters.coloured_json('{"a": [1.5e-3, true, "x: 1", null], "b" : "c"}')
    kinds = re.findall(r'class="j(.)">([^<]*)<', html)
    assert [(kind, unescape(text)) for kind, text in kinds] == [
        ("k", '"a"'),
        ("n", "1.5e-3"),
        ("l", "true"),
        ("s", '"x: 1"'),
        ("l", "null"),
        ("k", '"b"'),
        ("s", '"c"'),
    ]


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.dictionaries(st.text(), inner))
)
def test_colours_change_no_text(value: object) -> None:
    """What is shown is the text, also where it was cut, and the only elements are colours."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    for shown in (text, text[: len(text) // 2], f"{text[:-1]}\\"):
        spans = Spans()
        spans.feed(render_source("{{ text | coloured_json }}", text=shown))
        spans.close()
        assert spans.text == shown.replace("\r\n", "\n").replace("\r", "\n") or spans.text == shown


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', '{"a": "</span><svg onload=x>"}', "&lt;b&gt;"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_escaped(text: str) -> None:
    """No filter and no macro lets a text out as HTML."""
    spans = Spans()
    spans.feed(filters.coloured_json(text))
    spans.close()
    assert spans.text == text
    source = (
        "{% call(row) table(text, [text, (text, 'number', text)], [1], text, sorting) %}"
        "<tr><td>{{ text }}</td></tr>{% endcall %}"
        "{{ badge(text, text) }}{{ tile(text, text, text, text, text) }}{{ spark([1, 2], text) }}{{ codes([text]) }}"
        "{{ next_page(text, text, text) }}"
    )
    sorting = filters.Sorting(text, down=True, address=lambda key, _down: key)
    html = render_source(source, text=text, sorting=sorting)
    assert text not in html
    assert not re.search(r"<(script|img)\b|<svg (?!class)", html)


@pytest.mark.parametrize("text", ['"' + '\\"' * 32_000, '"a"' + " " * 64_000, '{"a":' * 12_000])
def test_large_json_is_bounded(text: str) -> None:
    """However a body is made, it takes little time and few elements."""
    begin = time.process_time()
    html = filters.coloured_json(text)
    assert time.process_time() - begin < 1
    assert html.count("<span") <= filters.MAX_COLOURED
    assert unescape(re.sub(r"<[^>]*>", "", html)) == text


def test_small_charts() -> None:
    """A chart of few values or none is valid; missing values repeat the previous one."""
    for values in ([], [5], [1, None, 3], [None, None], [0, 0, 0], [float(number) for number in range(360)]):
        for path in filters.spark_paths(values):
            numbers = [float(number) for number in re.findall(r"[\d.]+", path)]
            assert max(numbers[::2]) == filters.SPARK_WIDTH
            assert all(0 <= number <= filters.SPARK_HEIGHT for number in numbers[1::2])
    assert filters.spark_paths([1, None, 2])[1] == filters.spark_paths([1, 1, 2])[1]
    assert 'role="img" aria-label="Jobs a second"' in render_source("{{ spark([1, 2], 'Jobs a second') }}")
