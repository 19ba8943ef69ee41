"""The numbered CQL files, and how they are split."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.admin.cql_files import directory, known, parse, split

PLAIN = st.text("abc =\n'\"", max_size=8).map(lambda text: text.replace("'", "").replace('"', ""))
QUOTED = st.text("abc;-/*$\n '", max_size=8).map(lambda text: "'" + text.replace("'", "''") + "'")
NAMES = st.text('abc;-/*$\n "', max_size=8).map(lambda text: '"' + text.replace('"', '""') + '"')
DOLLARS = st.text("abc;-/*\n '\"", max_size=8).map(lambda text: f"$${text}$$")
COMMENTS = st.text("abc;'\"$ ", max_size=8).flatmap(
    lambda text: st.sampled_from([f"-- {text}\n", f"// {text}\n", f"/* {text}\n */"])
)


@given(st.lists(st.lists(PLAIN | QUOTED | NAMES | DOLLARS, max_size=4), max_size=4))
def test_split_at_the_ends_of_statements(statements: list[list[str]]) -> None:
    """Statements end at semicolons, not at those within quotes of any kind, and are otherwise left as they are."""
    texts = [" ".join(parts) for parts in statements]
    assert split(";".join(texts)) == [text.strip() for text in texts if text.strip()]


@given(st.lists(st.tuples(QUOTED, COMMENTS), min_size=1, max_size=4))
def test_comments_are_left_out(parts: list[tuple[str, str]]) -> None:
    """Comments of every kind go, whatever they contain; what looks like one within quotes stays."""
    text = "".join(quoted + comment for quoted, comment in parts)
    spaces = [
        "" if comment.startswith("/*") else "\n" for _, comment in parts
    ]  # The end of a line is not the comment's.
    assert split(text) == [
        "".join(f"{quoted} {space}" for (quoted, _), space in zip(parts, spaces, strict=True)).strip()
    ]


@pytest.mark.parametrize("name", ["1_x.cql", "001-x.cql", "001_X.cql", "001_.cql", "x.cql", "001_x.sql"])
def test_names(name: str) -> None:
    """A file with another name than NNN_what.cql is a mistake, not a change to be skipped."""
    with pytest.raises(ValueError, match="NNN_what"):
        parse(name, "")


def test_checksum_is_of_the_text() -> None:
    """An edit is noticed, be it of a comment: the file that was released is the record of what was done."""
    assert parse("001_x.cql", "a;").checksum != parse("001_x.cql", "a; -- b").checksum


def test_files_are_numbered_without_gaps() -> None:
    """There are files, numbered from 0; the first makes the table that records them."""
    assert [migration.number for migration in known()] == list(range(len(known())))
    assert "migrations" in known()[0].statements[0]
    assert len(list(directory().iterdir())) == len(known())


def test_every_statement_may_be_run_again() -> None:
    """A run that died between two statements is repeated from the beginning of the file."""
    again = re.compile(r"CREATE (TABLE|INDEX|TYPE|MATERIALIZED VIEW) IF NOT EXISTS |ALTER TABLE \w+ (ADD|DROP) IF ")
    assert [line for migration in known() for line in migration.statements if not again.match(line)] == []


def test_every_table_says_what_it_is_for() -> None:
    """Above each table stands the query that it serves and why its key is so (the four of messages share that)."""
    for path in directory().glob("*.cql"):
        text = path.read_text()
        for table in re.finditer(r"CREATE TABLE IF NOT EXISTS (\w+)", text):
            if table[1] not in {"messages_4d", "messages_32d", "messages_400d"}:
                above = text[: table.start()].rpartition(");")[2]
                assert "-- Query:" in above, table[1]
                assert "-- Key:" in above, table[1]
