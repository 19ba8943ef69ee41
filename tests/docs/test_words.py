"""The rules of docs and names that a program can check: see "Words" in CONTRIBUTING.md."""

import ast
import gc
import itertools
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from http import HTTPMethod
from pathlib import Path
from typing import Any

import pytest

from queuey.settings.loading import OTHER_VARIABLES
from queuey.settings.table import table, variable_of
from tests.docs import documented
from tests.docs.documented import ROOT, Function, Source, string

Key = tuple[str, str]
RECORD = Path(__file__).with_name("words.toml")
PAGES = Path(__file__).with_name("page_words.txt")
MAX_WORDS = 89_948
"""Max words of all pages for users. Only lower it; the aim is 60,000."""
MEASURES = (
    *("Max ", "Min ", "Interval ", "Timeout ", "Default ", "Number ", "Ratio ", "Cost ", "Code ", "Version "),
    *("Seconds ", "Bytes ", "Years ", "Share ", "Pause ", "Delay ", "Age ", "Key ", "Index "),
)
ROLE = re.compile(r":(?:class|meth|func|attr|mod|data|exc|obj):`(?:[^`<]*<)?[~!]?(?P<name>[^`<>()]+)(?:\(\))?>?`")
CAPITALS = re.compile(r"(?<![:`])(`{1,2})(?P<name>[A-Z_][A-Z0-9_]+(?:\.[A-Za-z_]+)*)\1(?!`)")
CODE = re.compile(r"(`+)[^`]+\1")
TERMS = {
    *HTTPMethod,
    *("CONNECTED", "SUSPENDED", "LOST"),  # states of a ZooKeeper session
    *("LOCAL_QUORUM", "LOCAL_SERIAL", "QUORUM", "SERIAL", "NONE", "RETURNING"),  # words of CQL, cassandra.yaml and SQL
    *("DS", "RS", "JSON", "QUEY", "UTC"),  # formats, and values in them
}
"""Words in capitals that are not names of ours."""
BEGIN = r"(?:\A\s*|(?m:^ *[\w*`, ]+: )|(?<=[.:;] ))"


SHOWN = 20
"""Max uses in a message."""


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """The trees of all files, which the garbage collector would go through again and again; nothing else uses them."""
    gc.disable()
    yield
    documented.sources.cache_clear()
    uses.cache_clear()
    gc.enable()


def sources() -> list[Source]:
    return list(documented.sources().values())


# Names in docstrings


def test_roles_name_what_exists() -> None:
    """A role such as ``:class:`` names something that can be found from where it stands."""
    wrong = [place for source in sources() for _, place in find_unresolved(source, ROLE)]
    assert not wrong, "\n".join(["Roles name nothing. Write the present name, or with its package:", *wrong])


def test_capitals_name_what_exists() -> None:
    """A name in capitals between backticks is a constant, a member, an environment variable or a term of the field."""
    terms = TERMS | OTHER_VARIABLES | {variable_of(setting.name) for setting in table()}
    unresolved = [pair for source in sources() for pair in find_unresolved(source, CAPITALS) if pair[0] not in terms]
    wrong = [place for name, place in unresolved if not any(f'"{name}"' in other.text for other in sources())]
    assert not wrong, "\n".join(["Names in capitals are gone; TERMS has terms of the field:", *wrong])


def test_described_arguments_exist() -> None:
    """A docstring describes only arguments that its function or class has."""
    gone = [
        f"{source.at(node.lineno)}: {node.name}: {name}"
        for source in sources()
        for node in (*source.classes, *source.functions)
        for name in read_described(node) - arguments(node)
    ]
    assert not gone, "\n".join(["Docstrings describe arguments that are gone. Write the present name:", *gone])


def read_described(node: Function | ast.ClassDef) -> set[str]:
    section = re.search(r"(?m)^Args:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "")
    entries = re.findall(r"(?m)^    ([\w*]+(?:, [\w*]+)*):", section[1]) if section else []
    return {name.strip("* ") for entry in entries for name in entry.split(",")}


def arguments(node: Function | ast.ClassDef) -> set[str]:
    """Returns the names of a function's arguments; all described ones of a class without a constructor."""
    if isinstance(node, ast.ClassDef):
        constructor = functions(node).get("__init__")
        return read_described(node) if constructor is None else arguments(constructor)
    spec = node.args
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
    return {argument.arg for argument in every if argument is not None}


def find_unresolved(source: Source, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yields the names in docstrings that stand for nothing, each with its place."""
    for line, text in enumerate(source.text.splitlines(), 1):
        for match in pattern.finditer(text) if "`" in text else ():
            if not source.knows(match["name"], line):
                yield match["name"], f"{source.at(line)}: {match['name']}"


# Phrases and words that leave


@cache
def record() -> dict[Key, dict[str, Any]]:
    """Returns the phrases and words that leave the product, by table and name."""
    tables = tomllib.loads(RECORD.read_text())
    return {(kind, name): line for kind, lines in tables.items() for name, line in lines.items()}


@cache
def uses() -> dict[Key, list[str]]:
    found: dict[Key, list[str]] = {key: [] for key in record()}
    for source in sources():
        if source.package[:3] != ("queuey", "client", "_sync"):
            for key, line, text in itertools.chain(phrases_of(source), names_of(source)):
                if key in found:
                    found[key].append(f"{source.at(line)}: {text}")
    return found


def phrases_of(source: Source) -> Iterator[tuple[Key, int, str]]:
    for kind, texts in (("phrases", source.docstrings), ("messages", source.strings)):
        for line, text in texts:
            for key, pattern in patterns(kind):
                for match in pattern.finditer(text):
                    before = text.count("\n", 0, match.start())
                    yield key, line + before, text.splitlines()[before].strip()[:80]


def names_of(source: Source) -> Iterator[tuple[Key, int, str]]:
    for line, text in source.docstrings:
        for word in re.findall(r"[A-Za-z]+", CODE.sub("", text)):
            yield ("words", word.lower()), line, word
    for line, name in source.bindings:
        plain = name.lstrip("_")
        yield ("names", plain), line, name
        yield ("prefixes", plain.partition("_")[0] + "_"), line, name
        for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
            yield ("words", part.lower()), line, name


@cache
def patterns(kind: str) -> list[tuple[Key, re.Pattern[str]]]:
    lines = ((key, line) for key, line in record().items() if key[0] == kind)
    return [(key, re.compile(line["pattern"].replace("{begin}", BEGIN))) for key, line in lines]


def test_retired_words_get_fewer() -> None:
    """A phrase or a word that leaves the product is not used more often than recorded; the record is the real count."""
    for key in record():
        check_count(key)


def check_count(key: Key) -> None:
    found, line = uses()[key], record()[key]
    more = f"[{'.'.join(key)}] in {RECORD.relative_to(ROOT)} allows {line['count']} uses, not {len(found)}."
    newest = sorted(found, key=lambda place: (ROOT / place.partition(":")[0]).stat().st_mtime, reverse=True)[:SHOWN]
    assert len(found) <= line["count"], "\n".join(
        [more, f"Better: {line['better']}. In the files changed last:", *newest]
    )
    assert len(found) == line["count"], f"{more} Write the lower count."


# Docstrings of constants and overrides


def constants_with_text(source: Source) -> Iterator[tuple[int, str, str]]:
    """Yields line, name and text of numeric constants with a string right below."""
    nodes: list[ast.Module | ast.ClassDef] = [source.tree, *source.classes]
    for node in nodes:
        for one, below in itertools.pairwise(node.body):
            if not isinstance(one, ast.Assign | ast.AnnAssign) or not is_number(one.value):
                continue
            target = one.target if isinstance(one, ast.AnnAssign) else one.targets[0]
            if isinstance(target, ast.Name) and target.id.isupper() and (text := string(below)) is not None:
                yield one.lineno, target.id, text


def is_number(value: ast.expr | None) -> bool:
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.Name):
        return value.id.isupper()
    return isinstance(value, ast.Constant) and type(value.value) in {int, float}


def test_constants_begin_with_their_measure() -> None:
    """A reader of a number sees first whether it is a bound, an interval or a timeout."""
    found = [
        f"{source.at(line)}: {name}: {text.strip()[:80]!r}"
        for source in sources()
        for line, name, text in constants_with_text(source)
        if not text.startswith(MEASURES)
    ]
    assert not found, "\n".join([f"{len(found)} begin with none of {MEASURES}:", *found])


def functions(one: ast.ClassDef) -> dict[str, Function]:
    return {node.name: node for node in one.body if isinstance(node, Function)}


def test_overrides_have_no_docstring() -> None:
    """What a method does stands where it is declared first."""
    found = [
        f"{source.at(function.lineno)}: {one.name}.{name}"
        for source in sources()
        for one in source.classes
        for name, function in functions(one).items()
        if ast.get_docstring(function) is not None and not name.startswith("__")
        if is_override(".".join((source.module, *source.classes_around(one.lineno))), name)
    ]
    assert not found, "\n".join([f"{len(found)} overrides have a docstring:", *found])


def is_override(owner: str, name: str) -> bool:
    """Returns whether a class of ours, given by its dotted name, has a method from a base class of ours."""
    bases = getattr(documented.resolve(owner), "__mro__", ())[1:]
    return any(name in vars(base) and base.__module__.startswith(documented.PACKAGES) for base in bases)


# Words of users' pages

INTERNAL = re.compile(r"docs/(decisions/|measurements/|architecture|walk-)")


def test_pages_of_users_get_shorter() -> None:
    """No page has more words than recorded; a page that became shorter by over 40 has a lower record."""
    paths = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    counts = {path: len((ROOT / path).read_text().split()) for path in paths if not INTERNAL.match(path)}
    bounds = {path: int(words) for words, path in map(str.split, PAGES.read_text().splitlines())}
    wrong = {path for path in counts | bounds if not 0 <= bounds.get(path, 0) - counts.get(path, 0) <= 40}
    assert not wrong, f"Shorten these pages, or write the lower count into {PAGES.name}: {sorted(wrong)}"
    assert sum(bounds.values()) <= MAX_WORDS
