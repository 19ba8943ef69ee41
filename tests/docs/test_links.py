"""Everything that the documentation names exists: pages, files, commands, options, settings, variables and metrics."""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local import __main__ as servers
from qdo import cli as qdo_cli
from qdo.cli import settings as qdo_settings
from qdo.worker.metrics import WorkerMetrics
from queuey import cli as queuey_cli
from queuey import settings
from queuey.app.service import Service
from queuey.runtime.metrics import Metrics, make_exposition, make_snapshot
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from tests import pages
from tests.harness import __main__ as fault_runs
from tests.servers.plugin import CASSANDRA_VARIABLE, ZOOKEEPER_VARIABLE
from tests.servers.processes import run_well

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"))
)
NAME_ROW = re.compile(r"\| `([a-z_.]+)` \| (.+?) \| .+ \|")
NAMES_TABLE = (ROOT / "docs/support.md").read_text().partition("## Public names")[2].partition("\n## ")[0]
PUBLIC_NAMES = {module: set(re.findall(r"`(\w+)`", names)) for module, names in NAME_ROW.findall(NAMES_TABLE)}
"""Public names by module; only ``__all__`` if it has them all."""
INDEXES = ("docs/all-pages.md", "docs/decisions/index.md")
VARIABLES = {line.variable for line in settings.table()} | settings.OTHER_VARIABLES
VARIABLES |= {CASSANDRA_VARIABLE, ZOOKEEPER_VARIABLE, qdo_settings.CONFIG_VARIABLE}
VARIABLES |= {line.variable for line in qdo_settings.table().values()}


PROGRAMS = {"queuey": queuey_cli, "qdo": qdo_cli}


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text()


@cache
def prose_of(page: str) -> str:
    return pages.FENCE.sub("", text_of(page))


@cache
def inline_code(page: str) -> frozenset[str]:
    return frozenset(re.findall(r"`([^`\n]+)`", prose_of(page)))


def options_in(page: str) -> set[str]:
    return {code.split()[0].partition("=")[0] for code in inline_code(page) if code.startswith("--")}


def blocks(page: str, language: str) -> list[str]:
    return [block.text for block in pages.blocks(page) if block.language == language]


@cache
def anchors(page: str) -> frozenset[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return frozenset(plain)


def options_of(command: Any) -> set[str]:  # noqa: ANN401 - a command of typer's
    named = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return named | {"--help"}


def part_of(group: Any, name: str) -> Any:  # noqa: ANN401 - commands of typer's
    return group.load(name) if hasattr(group, "load") else group.commands[name]


def with_parts(command: Any) -> list[Any]:  # noqa: ANN401 - a command of typer's
    parts = (part_of(command, name) for name in getattr(command, "commands", ()))
    return [command, *(below for part in parts for below in with_parts(part))]


@cache
def options() -> frozenset[str]:
    commands: list[Any] = [program.load(name) for program in PROGRAMS.values() for name in program.COMMANDS]
    everything = (options_of(below) for command in commands for below in with_parts(command))
    others = {"--install-completion", "--version", *fault_runs.make_parser()._option_string_actions}
    return frozenset(others.union(*everything))


@cache
def words() -> frozenset[str]:
    sources = (
        *(path for directory in ("queuey", "qdo", "bench", "deploy") for path in (ROOT / directory).rglob("*.py")),
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "cql").glob("*.cql"),
        ROOT / "pyproject.toml",
        ROOT / "tests" / "suite" / "needs.py",
    )
    return frozenset(word for path in sources for word in re.findall(r"\w+", path.read_text()))


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    """Every relative link leads to a file of the project, and to a heading of it if it names one."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        exists = path.exists() and path.is_relative_to(ROOT)
        if not exists or (anchor and anchor not in anchors(str(path.relative_to(ROOT)))):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached() -> None:
    """One page links to every other page of the documentation, and to decisions through their own index."""
    linked = {
        (ROOT / page / ".." / target).resolve()
        for page in INDEXES
        for target in re.findall(r"\]\(([^)\s#]+)", text_of(page))
    }
    assert {page for page in PAGES if page.startswith("docs/") and (ROOT / page).resolve() not in linked} == {
        INDEXES[0]
    }


def command_of(line: str) -> tuple[Any, list[str]] | None:
    """Returns the command of ours that a shell line calls, and its arguments; None for another line.

    Fails if the line calls one of our programs with an unknown command.
    """
    tokens = [*dropwhile(lambda word: re.match(r"[A-Z_]+=", word), shlex.split(line, comments=True)), ""]
    for index, (token, after) in enumerate(pairwise(tokens)):
        program = PROGRAMS.get(token.rpartition("/")[2])
        if program is not None and after in program.COMMANDS:
            return program.load(after), tokens[index + 2 : -1]
    assert tokens[0] not in PROGRAMS or tokens[1] in {"--help", "--install-completion", "--version"}, line
    return None


@pytest.mark.parametrize("page", PAGES)
def test_commands(page: str) -> None:
    """Every command of ours in an example or in the text exists, with the options shown."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if re.search(r"\b(queuey|qdo)\b", line) and "import" not in line]
    lines += [code for code in inline_code(page) if code.startswith(("queuey ", "qdo "))]
    for piece in (piece for line in lines for piece in re.split(r" [|<>&] |; ", line)):
        parsed = command_of(piece) if piece.count("'") % 2 == 0 and piece.count('"') % 2 == 0 else None
        if parsed is None:
            continue
        command, rest = parsed
        while hasattr(command, "commands") and rest and rest[0] != "--help":
            assert rest[0] in command.commands, piece
            command = part_of(command, rest.pop(0))
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used - options_of(command) == set(), piece


@pytest.mark.parametrize("page", PAGES)
def test_options_and_variables(page: str) -> None:
    """Every option that the text names belongs to some command, and every variable of ours is read somewhere."""
    if page == "deploy/local/README.md":
        assert options_in(page) - {*servers.make_parser()._option_string_actions, "--without-servers"} == set()
    elif page not in {"docs/measurements/sqlite.md", "docs/decisions/libraries.md"}:
        assert options_in(page) - options() == set()
    assert set(re.findall(r"\b(?:QUEUEY|QDO)_[A-Z_]+\b", text_of(page))) - VARIABLES == set()


def find_mistake(block: pages.Block) -> str:
    """Returns what is wrong with a block's language or mark, or an empty text.

    Raises an error if its text cannot be parsed.
    """
    marks = pages.TEXTS if block.language == "text" else pages.REASONS if block.language in pages.PROGRAMS else {"": ""}
    if block.language not in {"text"} | pages.PROGRAMS | pages.DATA:
        return f"has the language {block.language!r}, not one of tests/pages.py"
    if block.mark and block.mark not in marks:
        return f"is marked {block.mark!r}, not one of {', '.join(marks)}"
    if block.mark == "service" and not all(re.match(r"\S*queuey serve\b", line) for line in block.text.splitlines()):
        return "is marked as a start of the service, and does something else"
    PARSERS.get(block.language, str)(block.text)
    return ""


PARSERS: dict[str, Callable[[str], object]] = {
    "python": lambda text: compile(text, "block", "exec"),
    "json": json.loads,
    "yaml": yaml.safe_load,
    "ini": lambda text: configparser.ConfigParser(interpolation=None).read_string(text),
}


@pytest.mark.needs_programs
@pytest.mark.parametrize("page", PAGES)
def test_blocks(page: str) -> None:
    """Every block has a known language, and is run, parsed or compared by a test, or marked with a reason why not."""
    page_blocks = pages.blocks(page)
    assert len(page_blocks) * 2 == len(re.findall(r"^ *```", text_of(page), re.MULTILINE))
    mistakes = [f"{page}:{block.line} {mistake}" for block in page_blocks if (mistake := find_mistake(block))]
    assert mistakes == []
    shell = "\n".join(block.text for block in page_blocks if block.language == "sh")
    run_well(["/bin/sh", "-n"], input=shell)
    run_by = pages.RUN_BY.get(page, {})
    listed = {"sh"} if page in pages.LISTED else set()
    to_run = [
        block
        for block in pages.runnable_blocks(page)
        if block.language not in listed and "pip install" not in block.text
    ]
    not_run = {block.section for block in to_run if "" not in run_by and block.section not in run_by}
    assert not_run == set(), "no test of tests/pages.py RUN_BY runs these sections: mark their blocks, or have them run"


def test_who_runs_blocks() -> None:
    """Each page and section listed with a test has something to run, and the test names the page."""
    for page, sections in pages.RUN_BY.items():
        for section, names in sections.items():
            assert pages.runnable_blocks(page, below=section), (page, section)
            for name in names.split(", "):
                assert Path(page).name in (ROOT / name).read_text(), (page, name)


def test_marks() -> None:
    """Each mark is used."""
    used = {block.mark for page in PAGES for block in pages.blocks(page)} - {""}
    assert used == {*pages.REASONS, *pages.TEXTS}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_settings_files(page: str, tmp_path: Path) -> None:
    """A settings file in a page is accepted."""
    load, file = (qdo_settings if page.startswith("docs/qdo") else settings).load, tmp_path / "settings.toml"
    for block in blocks(page, "toml"):
        file.write_text(block)
        load({}, {}, config=file)


@pytest.mark.parametrize("page", PAGES)
def test_names(page: str) -> None:
    """Every setting, field, function, module and file that the text names in code letters exists."""
    missing = set()
    for code in inline_code(page):
        if re.fullmatch(r"[a-z]+(_[a-z]+)+", code) and not code.startswith(("queuey_", "qdo_")):
            exists = code in words()
        elif re.fullmatch(r"(queuey|qdo|tests)(\.[a-z_0-9]+)+", code) and not code.startswith("queuey.sqlite3"):
            exists = find_spec(code) is not None or code in {"queuey.storage.cassandra", "queuey.toml"}
        elif re.fullmatch(r"(queuey|qdo|tests|docs|deploy)/[\w./]+", code) and code != "queuey/profile.toml":
            exists = (ROOT / code).exists()
        else:
            continue
        if not exists:
            missing.add(code)
    assert missing == set()


def test_metrics(tmp_path: Path) -> None:
    """The page about operations names exactly the existing metrics."""
    metrics = Metrics()
    metrics.count_request("v1.queue", 200, 0.001)
    store = open_store(tmp_path / "data")
    text = make_exposition({"1": make_snapshot(metrics, bridge.run(Service(store).statistics()))}).decode()
    store.close()
    families = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert set(re.findall(r"\bqueuey_[a-z_]+\b", text_of("docs/operations.md"))) == families
    assert re.findall(r"^# HELP (\w+) *$", text, re.MULTILINE) == []


def test_metrics_of_workers() -> None:
    """The page about workers names exactly the metrics of a worker."""
    families = {family.name + "_total" * (family.type == "counter") for family in WorkerMetrics(None).collect()}
    assert set(re.findall(r"`(qdo_[a-z_]+)`", text_of("docs/qdo.md"))) == families


def test_figures_of_the_readme_were_measured() -> None:
    """Each figure is in the pages about performance, with the commit that the README gives."""
    section = text_of("README.md").partition("\n## How fast it is\n")[2].partition("\n## ")[0]
    figures = re.findall(r"^\| \*\*([\d,]+)\*\* ", section, re.MULTILINE)
    measured = "".join(text_of(page) for page in PAGES if page.startswith("docs/performance"))
    assert len(figures) == 4
    assert [figure for figure in figures if not re.search(rf"(?<![\d,.]){figure}(?![\d,])", measured)] == []
    [commit] = re.findall("`([0-9a-f]{8})`", section)
    lines = [next(line for line in measured.splitlines() if f" {figure} " in line) for figure in figures]
    assert [f"`{commit}`" in line for line in lines] == [True] * 4


def public_names(module: str) -> set[str]:
    names = PUBLIC_NAMES.get(module, set())
    return set(importlib.import_module(module).__all__) if names == {"__all__"} else names


def names_used(program: str) -> set[tuple[str, str]]:
    """Returns the modules of this project and the names that a program imports from them; a module's own name is ""."""
    imports = [x for x in ast.walk(ast.parse(program)) if isinstance(x, ast.ImportFrom)]
    names = {
        (str(x.module), alias.name) for x in imports for alias in x.names if str(x.module).startswith(tuple(PROGRAMS))
    }
    return {
        (f"{module}.{name}", "") if f"{module}.{name}" in PUBLIC_NAMES else (module, name) for module, name in names
    }


def test_pages_use_public_names_only() -> None:
    """What the programs of the pages import is public, and each public name is in its module."""
    programs = [(page, program) for page in PAGES for program in blocks(page, "python")]
    uses = {(page, *one) for page, program in programs for one in names_used(program)}
    assert {module for _, module, _ in uses} >= PUBLIC_NAMES.keys() - {"queuey.testing"}
    assert sorted(one for one in uses if one[2] and one[2] not in public_names(one[1])) == []
    names = {(module, name) for module in PUBLIC_NAMES for name in public_names(module)}
    assert [one for one in names if not hasattr(importlib.import_module(one[0]), one[1])] == []
