"""The rules of docs and names that a program can check: see "Words" in CONTRIBUTING.md."""

import ast
import gc
import itertools
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from http import HTTPMethod
from pathlib import Path
from typing import NamedTuple

import pytest

from queuey.settings.loading import OTHER_VARIABLES
from queuey.settings.table import table, variable_of
from tests.unit.words import documented
from tests.unit.words.documented import ROOT, Function, Source, string

RECORD = Path(__file__).with_name("words.toml")
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


class Use(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Retired(NamedTuple):
    """A phrase or a word that leaves the product.

    Attributes:
        key: Its table and name in the record.
    """

    key: tuple[str, str]
    better: str
    uses: int
    pattern: str = ""


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


def use(source: Source, line: int, text: str) -> Use:
    return Use(str(source.path.relative_to(ROOT)), line, text)


def format_uses(problem: str, uses: Sequence[Use]) -> str:
    return "\n".join([f"{len(uses)} {problem}", *map(str, uses)])


# Names in docstrings


def test_roles_name_what_exists() -> None:
    """A role such as ``:class:`` names something that can be found from where it stands."""
    wrong = [found for source in sources() for found in find_unresolved(source, ROLE)]
    assert not wrong, format_uses(
        "roles name nothing. Write the present name, with its package if it is not imported:", wrong
    )


def test_capitals_name_what_exists() -> None:
    """A name in capitals between backticks is a constant, a member, an environment variable or a term of the field."""
    variables = {variable_of(setting.name) for setting in table()} | OTHER_VARIABLES
    wrong = [
        found
        for source in sources()
        for found in find_unresolved(source, CAPITALS)
        if found.text not in TERMS | variables and not any(f'"{found.text}"' in other.text for other in sources())
    ]
    assert not wrong, format_uses(
        "names in capitals are gone. Write the present name; TERMS has terms of the field:", wrong
    )


def test_described_arguments_exist() -> None:
    """A docstring describes only arguments that its function or class has."""
    gone = [
        use(source, node.lineno, f"{node.name}: {name}")
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for name in read_described(node) - arguments(node)
    ]
    assert not gone, format_uses("docstrings describe arguments that are gone. Write the present name:", gone)


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


def find_unresolved(source: Source, pattern: re.Pattern[str]) -> Iterator[Use]:
    for line, text in enumerate(source.text.splitlines(), 1):
        for match in pattern.finditer(text) if "`" in text else ():
            if not source.knows(match["name"], line):
                yield use(source, line, match["name"])


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("Slice.make_postponed_page", True),
        ("queuey.client.Client.rights", True),
        (".errors.QueueNotFound", True),
        ("datetime.timedelta", True),
        ("Queue._replaced", False),
        (".structs", False),
        ("timedelta", False),
    ],
)
def test_names_are_looked_up(name: str, exists: bool) -> None:  # noqa: FBT001 - a column of the table above
    """A name is found in its class, its module, a base class, an import or a package, and nowhere else."""
    assert documented.sources()["queuey.messages"].knows(name, 1) == exists


# Phrases and words that leave


@cache
def record() -> list[Retired]:
    tables = tomllib.loads(RECORD.read_text())
    return [
        Retired((kind, name), line["better"], line["count"], line.get("pattern", ""))
        for kind, lines in tables.items()
        for name, line in lines.items()
    ]


@cache
def uses() -> dict[tuple[str, str], list[Use]]:
    found: dict[tuple[str, str], list[Use]] = {retired.key: [] for retired in record()}
    for source in sources():
        if source.package[:3] != ("queuey", "client", "_sync"):
            for key, line, text in itertools.chain(phrases_of(source), names_of(source)):
                if key in found:
                    found[key].append(use(source, line, text))
    return found


def phrases_of(source: Source) -> Iterator[tuple[tuple[str, str], int, str]]:
    for kind, texts in (("phrases", source.docstrings), ("messages", source.strings)):
        for line, text in texts:
            for key, pattern in patterns(kind):
                for match in pattern.finditer(text):
                    before = text.count("\n", 0, match.start())
                    yield key, line + before, text.splitlines()[before].strip()[:80]


def names_of(source: Source) -> Iterator[tuple[tuple[str, str], int, str]]:
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
def patterns(kind: str) -> list[tuple[tuple[str, str], re.Pattern[str]]]:
    chosen = [retired for retired in record() if retired.key[0] == kind]
    return [(retired.key, re.compile(retired.pattern.replace("{begin}", BEGIN))) for retired in chosen]


@pytest.mark.parametrize("retired", record(), ids=lambda retired: ".".join(retired.key))
def test_retired_words_get_fewer(retired: Retired) -> None:
    """A phrase or a word that leaves the product is not used more often than recorded; the record is the real count."""
    found = uses()[retired.key]
    count, where = len(found), f"[{'.'.join(retired.key)}] in {RECORD.relative_to(ROOT)}"
    more = f"{where} allows {retired.uses} uses, not {count}. Better: {retired.better}."
    newest = sorted(found, key=lambda found: (ROOT / found.path).stat().st_mtime, reverse=True)[:SHOWN]
    assert count <= retired.uses, "\n".join([more, "Uses in the files changed last:", *map(str, newest)])
    assert count == retired.uses, f"{where} allows more uses than there are: write count = {count}."


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
