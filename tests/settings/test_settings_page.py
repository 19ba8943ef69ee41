"""The tables of docs/settings.md are those of the program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from queuey import settings
from queuey.settings import Setting
from queuey.settings.definitions import GROUPS
from queuey.settings.setting_values import read_descriptions
from queuey.settings.users import UserIssuer

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
LINES = {line.name: line for line in settings.table()}
FACADES = [line for line in LINES["facades"].fields if line.fields]


def tables(heading: str) -> list[str]:
    section = re.split(r"\n##+ ", PAGE.partition(f"# {heading}\n")[2])[0]
    return [block for block in section.strip().split("\n\n") if block.startswith("| ")]


def drawn(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])


def of_settings(names: Iterable[str]) -> str:
    lines = [LINES[name] for name in names]
    return drawn(
        ["name", "type", "default", "meaning"],
        ([f"`{line.name}`", line.type, line.default, line.help] for line in lines),
    )


def fields_table(line: Setting) -> str:
    names = (field.name.removeprefix(f"{line.name}.") for field in line.fields)
    rows = ([f"`{name}`", field.type, field.help] for name, field in zip(names, line.fields, strict=True))
    return drawn(["field", "type", "meaning"], rows)


def users_table() -> str:
    def default(field: msgspec.structs.FieldInfo) -> str:
        if field.required:
            return "needed"
        return f"`{settings.as_text(field.default)}`" if isinstance(field.default, str | float) else "none"

    fields, described = msgspec.structs.fields(UserIssuer), read_descriptions(UserIssuer)
    rows = [[f"`{field.name}`", default(field), described[field.name][1]] for field in fields]
    return drawn(["field", "default", "meaning"], rows)


@pytest.mark.parametrize("group", GROUPS)
def test_every_setting_stands_in_its_group(group: str) -> None:
    """The page has each group with all of its settings, exactly as the program has them."""
    assert tables(group) == [of_settings(line.name for line in LINES.values() if line.group == group)]


def test_ten_settings_come_first() -> None:
    """The most common settings are at the top, as in their groups."""
    (table,) = tables("Settings")
    names = re.findall(r"^\| `(.+?)` ", table, re.MULTILINE)
    assert len(names) == 10
    assert table == of_settings(names)


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Rates", [fields_table(LINES["rates"])]),
        ("Users", [users_table()]),
        ("Facades", [fields_table(line) for line in (LINES["facades"], *FACADES)]),
        (
            "Consistency levels",
            [fields_table(LINES[f"consistency.{name}"]) for name in ("weak", "strong", "catalogue")],
        ),
    ],
)
def test_fields_of_tables(heading: str, expected: list[str]) -> None:
    """Each setting that is a table has its fields on the page."""
    assert [table for table in tables(heading) if not table.startswith("| place |")] == expected
