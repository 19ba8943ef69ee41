"""The map of the code in CONTRIBUTING.md says what the packages say of themselves, and names what there is."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SHARED_NAMES = {
    *("ApplicationNotFound", "ClaimLost", "Conflict", "GroupActive", "GroupElsewhere", "GroupNotFound"),
    *("InvalidArgument", "InvalidRequest", "KeyInUse", "KeyReused", "MemberGone", "MessageNotFound", "NameTaken"),
    *("NotAllowed", "NotAuthenticated", "NotFound", "NotOwner", "OffsetConflict", "QueueExists", "QueueNotFound"),
    *("TooLarge", "TooManyWaiters"),
    *("Message", "Page", "Queue"),
}
"""Classes of more than one room: the errors that a client raises as the service does, and what both sides hold."""
MAP = TEXT[TEXT.index("## A map of the code") : TEXT.index("## Writing tests")]


def read_sentence(package: str) -> str:
    """Returns the first line of a package's docstring, with the marks of a page."""
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    return re.sub(r":class:`(\w+)`", r"`\1`", docstring.split("\n")[0]).replace("``", "`")


def test_rooms() -> None:
    """Each package has a row with the sentence of its docstring; the rooms of queuey stand in the order of imports."""
    rows = dict(re.findall(r"^\| `((?:queuey|qdo)/\w+)` \| (.+) \|$", MAP, re.MULTILINE))
    packages = {
        path.parent.relative_to(ROOT).as_posix()
        for name in ("queuey", "qdo")
        for path in (ROOT / name).glob("*/__init__.py")
    }
    assert rows == {package: read_sentence(package) for package in packages}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["id"] == "rooms"]
    order = [set(re.findall(r"\w+", layer)) for layer in reversed(layers)]
    shown = [name.removeprefix("queuey/") for name in rows if name.startswith("queuey/")]
    levels = [next(level for level, names in enumerate(order) if name in names) for name in shown]
    assert levels == sorted(levels), "a room stands above one that it imports"


def test_where_to_begin() -> None:
    """Every file and folder of the table is there."""
    names = re.findall(r"`((?:queuey|qdo|docs|deploy|cql|tests)/[\w./]*)`", MAP)
    assert len(names) > 80
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_names() -> None:
    """A class has a name of its own, except what the service, its client and Qdo know by the same name."""
    rooms = defaultdict(set)
    for path in (path for name in ("queuey", "qdo") for path in (ROOT / name).rglob("*.py")):
        room = path.relative_to(ROOT).parts[:2]
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            rooms[name].add(room)
    assert {name for name, found in rooms.items() if len(found) > 1} == SHARED_NAMES
