"""The public surface: what it contains, that both clients have the same, and that importing it has no side effects."""

from __future__ import annotations

import doctest
import sys
from typing import Literal, get_type_hints

import pytest

import queuey.client
from queuey.client import Query, ReadOptions, SendOptions, errors
from queuey.client.calls.queue_calls import QueueFields
from queuey.client.calls.send_calls import Outgoing
from queuey.client.credentials import tokens
from tests.servers.processes import run_well


def test_all_is_sorted_and_complete() -> None:
    """Everything that the package exports is listed, in order."""
    exported = queuey.client.__all__
    assert list(exported) == sorted(exported, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    tree = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ClientError)
    ]
    assert set(tree) <= set(exported)
    assert {"AsyncClient", "Client", "Message", "Outgoing", "Page", "Profile", "Query", "Receipt"} <= set(exported)
    for name in exported:
        assert getattr(queuey.client, name).__doc__


def test_options_are_those_of_the_structs() -> None:
    """The keyword arguments of read and send are exactly the fields of Query and Outgoing."""
    assert {"queue", *get_type_hints(ReadOptions)} == set(Query.__struct_fields__)
    assert {"body", *get_type_hints(SendOptions)} == set(Outgoing.__struct_fields__)


@pytest.mark.needs_programs
def test_importing_loads_no_http_library_and_reads_nothing() -> None:
    """An import is cheap and has no side effects: no HTTP library, no event loop, no read of environment or files."""
    program = """
import os, sys
import msgspec
before = set(sys.modules)
class Guarded(dict):
    def __getitem__(self, name): raise AssertionError(name)
    get = __getitem__
os.environ = Guarded()
opened = []
def hook(event, args):
    if event == "open" and not str(args[0]).endswith((".py", ".pyc")):
        opened.append(args[0])
sys.addaudithook(hook)
import queuey.client
print(sorted({"httpx2", "asyncio", "ssl", "platformdirs", "tomllib", "email"} & set(sys.modules)))
print([name for name in opened if isinstance(name, str) and "site-packages" not in name and not os.path.isdir(name)])
"""
    assert run_well([sys.executable, "-c", program]).splitlines() == ["[]", "[]"]


def test_options_of_a_queue_with_few_values_have_a_type() -> None:
    """A type checker rejects an unknown kind of queue, and an unknown policy for acknowledged messages."""
    hints = get_type_hints(QueueFields)
    assert hints["kind"] == Literal["plain", "dedup", "ordered"] | None
    assert hints["on_ack"] == Literal["keep", "delete"] | None


def test_the_example_of_a_token_file_runs() -> None:
    """What the docstring of ``read_token`` shows is what happens."""
    ended = doctest.testmod(tokens)
    assert (ended.failed, ended.attempted > 0) == (0, True)
