"""The parts of kazoo's handler and socket that kazoo uses, which ours replace.

It documents the handler's interface, but not which methods of a socket it uses and where it looks for data that were
read ahead. Hence kazoo is pinned to the minor release that was tested; a newer one is tried by raising the pin, and
then these tests say what it wants that it did not want before.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path

import kazoo
from kazoo import client
from kazoo.protocol import connection

from qdo.group.zookeeper.handler import Wire

ROOT = Path(__file__).parents[4]
OF_THE_SOCKET = {"close", "getpeername", "pending", "recv", "send", "setblocking"}


def asked_of(name: str) -> set[str]:
    """Returns the attributes that kazoo uses on an object it keeps under a name."""
    attributes = set()
    for module in (client, connection):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == name:
                attributes.add(node.attr)
    return attributes


def test_the_socket_stand_in_has_what_kazoo_uses() -> None:
    """Kazoo uses no other attribute of the socket."""
    assert asked_of("_socket") == OF_THE_SOCKET
    made = inspect.getsource(Wire.__init__)
    assert all(hasattr(Wire, name) or f"self.{name} = connection.{name}" in made for name in OF_THE_SOCKET)


def test_kazoo_is_pinned_to_the_release_that_was_tested() -> None:
    """Kazoo is pinned to its minor release wherever it is required."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [each for extra in project["optional-dependencies"].values() for each in extra if each.startswith("kazoo")]
    major, minor = map(int, re.findall(r"\d+", kazoo.__version__)[:2])
    assert set(pins) == {f"kazoo>={major}.{minor},<{major}.{minor + 1}"}
