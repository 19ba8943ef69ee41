"""Tests of the numbered CQL files and of how they are split into statements."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.admin.migrations import find_directory, parse, read_known_migrations, split_statements

PLAIN = st.text("abc =\n'\"", max_size=8).map(lambda text: text.replace("'", "").replace('"', ""))
QUOTED = st.text("abc;-/*$\n '", max_size=8).map(lambda text: "'" + text.replace("'", "''") + "'")
NAMES = st.text('abc;-/*$\n "', max_size=8).map(lambda text: '"' + text.replace('"', '""') + '"')
DOLLARS = st.text("abc;-/*\n '\"", max_size=8).map(lambda text: f"$${text}$$")
COMMENTS = st.text("abc;'\"$ ", max_size=8).flatmap(
    lambda text: st.sampled_from([f"-- {text}\n", f"// {text}\n", f"/* {text}\n */"])
)


@given(st.lists(st.lists(PLAIN | QUOTED | NAMES | DOLLARS, max_size=4), max_size=4))
def test_split_at_the_ends_of_statements(statements: list[list[str]]) -> None:
    """Statements end at semicolons outside quotes of any kind, and are otherwise left unchanged."""
    texts = [" ".join(parts) for parts in statements]
    assert split_statements(";".join(texts)) == [text.strip() for text in texts if text.strip()]


@given(st.lists(st.tuples(QUOTED, COMMENTS), min_size=1, max_size=4))
def test_comments_are_left_out(parts: list[tuple[str, str]]) -> None:
    """Comments of every kind are removed, whatever they contain; text in quotes that looks like a comment stays."""
    text = "".join(quoted + comment for quoted, comment in parts)
    spaces = [
        "" if comment.startswith("/*") else "\n" for _, comment in parts
    ]  # The line break after a comment is not part of it.
    assert split_statements(text) == [
        "".join(f"{quoted} {space}" for (quoted, _), space in zip(parts, spaces, strict=True)).strip()
    ]


@pytest.mark.parametrize("name", ["1_x.cql", "001-x.cql", "001_X.cql", "001_.cql", "x.cql", "001_x.sql"])
def test_names(name: str) -> None:
    """A file whose name is not NNN_what.cql is an error and is not skipped."""
    with pytest.raises(ValueError, match="NNN_what"):
        parse(name, "")


def test_checksum_is_of_the_text() -> None:
    """Editing a comment changes the checksum too: the released file is the record of what was run."""
    assert parse("001_x.cql", "a;").checksum != parse("001_x.cql", "a; -- b").checksum


def test_files_are_numbered_without_gaps() -> None:
    """The files are numbered from 0 without gaps; the first one makes the table that records them."""
    assert [migration.number for migration in read_known_migrations()] == list(range(len(read_known_migrations())))
    assert "migrations" in read_known_migrations()[0].statements[0]
    assert len(list(find_directory().iterdir())) == len(read_known_migrations())


def test_every_statement_may_be_run_again() -> None:
    """Every statement can be run twice, because a run that died between two statements starts the file again."""
    again = re.compile(r"CREATE (TABLE|INDEX|TYPE|MATERIALIZED VIEW) IF NOT EXISTS |ALTER TABLE \w+ (ADD|DROP) IF ")
    assert [
        line for migration in read_known_migrations() for line in migration.statements if not again.match(line)
    ] == []


def test_every_table_says_what_it_is_for() -> None:
    """A comment above each table names its query and why its key is so (the four message tables share one)."""
    for path in find_directory().glob("*.cql"):
        text = path.read_text()
        for table in re.finditer(r"CREATE TABLE IF NOT EXISTS (\w+)", text):
            if table[1] not in {"messages_4d", "messages_32d", "messages_400d"}:
                above = text[: table.start()].rpartition(");")[2]
                assert "-- Query:" in above, table[1]
                assert "-- Key:" in above, table[1]
