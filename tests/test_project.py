"""The project's own rules: dependencies, version, sizes, import contracts and make targets."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

import queuey
from tests.dist.building import DEVELOPMENT, hashed_pins, requirements
from tests.servers.processes import run_well

ROOT = Path(__file__).parent.parent
LONGEST_FILE = 1000
LONGEST_FUNCTION = 80
MOST_MODULES = 25
DEFINITION = re.compile(r"^( *)(?:async )?def (\w+)", re.MULTILINE)
PRIVATE_USES = 300
"""How often tests use a private name of another object or module. The number may only fall."""
PRIVATE_NAME = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|^(?:from .* import .*|    )\b_[a-z]\w*", re.MULTILINE)


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): Version(version) for name, version in (x.split("==") for x in lines)}


def sources() -> list[Path]:
    return sorted(
        path for directory in ("queuey", "qdo", "bench", "tests", "deploy") for path in (ROOT / directory).rglob("*.py")
    )


def test_constraints_are_plain_pins() -> None:
    """Every line pins one distribution by name and version, once, in order, with no address or path."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    assert lines == sorted(lines, key=str.lower)
    assert len(pins()) == len(lines)


@pytest.mark.parametrize(
    ("name", "extras"), [("image", ("server", "cassandra", "sqs", "zookeeper")), ("ci", (DEVELOPMENT,))]
)
def test_hashed_pins(name: str, extras: tuple[str, ...]) -> None:
    """The files with hashes have the pinned versions, of everything that the image or CI installs directly."""
    pinned, hashed = pins(), hashed_pins(name)
    assert {package for package, version in hashed.items() if pinned.get(package, version) != version} == set()
    assert {canonicalize_name(line.name) for line in requirements(*extras)} - hashed.keys() == set()


def test_direct_dependencies_are_pinned() -> None:
    """Every requirement is pinned to a version that it accepts."""
    pinned = pins()
    specifiers = {canonicalize_name(line.name): line.specifier for line in requirements(DEVELOPMENT)}
    assert specifiers.keys() - pinned.keys() == set()
    assert {name for name, specifier in specifiers.items() if not specifier.contains(pinned[name])} == set()


def test_dependencies_are_bounded() -> None:
    """Every requirement has an upper bound, so that a new major version never arrives unasked."""
    operators = {str(x): {clause.operator for clause in x.specifier} for x in requirements(DEVELOPMENT)}
    assert {name for name, found in operators.items() if found != {">=", "<"}} == set()


def test_changelog_names_the_version() -> None:
    """A release has a dated section of its own; unreleased changes are under Unreleased."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = Version(queuey.__version__)
    assert headings[0] == "[Unreleased]"
    if not version.is_devrelease:
        assert re.fullmatch(rf"\[{re.escape(str(version))}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_files_stay_small() -> None:
    """No file is longer than 600 lines."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_folders_stay_small() -> None:
    """No folder holds more than 15 modules; ``__init__.py`` does not count."""
    modules = Counter(str(path.parent.relative_to(ROOT)) for path in sources() if path.name != "__init__.py")
    assert {name: count for name, count in modules.items() if count > MOST_MODULES} == {}


def test_functions_stay_small() -> None:
    """No function is longer than 80 lines."""
    long = {}
    for path in sources():
        text = path.read_text()
        for start in DEFINITION.finditer(text):
            end = re.compile(rf"^ {{0,{len(start[1])}}}[^\s)]", re.MULTILINE).search(text, start.end())
            length = len(text[start.start() : end and end.start()].rstrip().splitlines())
            if length > LONGEST_FUNCTION:
                long[f"{path.relative_to(ROOT)}: {start[2]}"] = length
    assert long == {}


def find_private_uses(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a file imports, and those of attributes, but for ``self`` and ``cls``, that are private."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in {"self", "cls"}:
            names = [node.attr]
        yield from (name for name in names if re.match("_[^_]", name))


def test_private_names_are_used_less_and_less() -> None:
    """Tests use the public names of the product, so that it can change. Who removes a private one lowers the count."""
    texts = {path: path.read_text() for path in sources() if path.is_relative_to(ROOT / "tests")}
    uses = Counter(
        str(path.relative_to(ROOT))
        for path, text in texts.items()
        if PRIVATE_NAME.search(text)
        for _ in find_private_uses(ast.parse(text))
    )
    assert uses.total() <= PRIVATE_USES, f"{uses.total()} uses of private names, most of them in {uses.most_common(10)}"


@pytest.mark.needs_programs
def test_import_contracts_hold() -> None:
    """Every module has its place in the layers and imports only what that place allows."""
    lint_imports = Path(sys.executable).with_name("lint-imports")
    run_well([lint_imports, "--no-logo", "--no-cache"], cwd=ROOT)


@pytest.mark.parametrize("package", ["queuey", "qdo"])
def test_packages_are_typed(package: str) -> None:
    """Each package declares its annotations to type checkers of users' programs."""
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.needs_programs
@pytest.mark.parametrize("target", ["demo", "test", "quick", "slow", "soak", "bench", "lint", "dist", "cluster"])
def test_make_help_names_the_fixed_targets(target: str) -> None:
    """The targets that people and continuous integration rely on exist and are explained."""
    result = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(rf"^\s+make {target} +\w", result.stdout, re.MULTILINE)


@pytest.mark.needs_programs
@pytest.mark.parametrize("target", ["demo", "inbox"])
def test_demos_leave_the_environment_alone(target: str) -> None:
    """Demos have an environment of their own, so a service that runs from ``.venv`` keeps running."""
    result = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "build/demo/bin/" in result.stdout
    assert ".venv" not in result.stdout


@pytest.mark.needs_programs
def test_start_without_warnings() -> None:
    """The start of the service does not warn about imports that only Pyramid can change."""
    command = [sys.executable, "-W", "error:pkg_resources is deprecated", "-c", "import queuey.app.application"]
    subprocess.run(command, cwd=ROOT, check=True)


@pytest.mark.needs_programs
def test_start_without_pkg_resources(tmp_path: Path) -> None:
    """The service does without a module that Pyramid imports and setuptools removed; Pyramid still finds its files."""
    program = """
import sys
sys.modules["pkg_resources"] = None
from queuey import embedded
with embedded.open("data", application="a") as client:
    client.create_queue("q")
    client.send("q", "x")
from pyramid.path import AssetResolver
icon, folder = map(AssetResolver("queuey").resolve, ["console/static/icon.svg", "console/static"])
print(icon.exists(), icon.isdir(), folder.isdir(), "pkg_resources" in sys.modules)
"""
    assert run_well([sys.executable, "-c", program], cwd=tmp_path).split() == ["True", "False", "True", "False"]
