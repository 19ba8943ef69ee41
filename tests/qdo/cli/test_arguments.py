"""Every argument of every command of qdo for the service is refused, or has effect on exactly what it names.

The arguments are those that the commands declare. The requests to the service are compared with those for a normal
text. Names in ZooKeeper: ``tests/qdo/contract/membership/test_members.py``, ``tests/qdo/unit/curator/test_options.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from qdo.cli import COMMANDS, load, main
from qdo.cli.settings import table
from qdo.worker.worker import Worker
from queuey.client._async.sender import AsyncSender
from tests.client.http.test_arguments import ID, read_request, replace_marker
from tests.commands import Run, make_runner
from tests.replacing import replace

MARKER = "m4rker"
SYNTAX = frozenset("/?#%[,")
"""Characters that have a meaning in a URL, or in a pattern."""
TEXTS = ("", ".", "..", "/", "?", "#", "%2F", "../payroll", "_me", "ü\n", "\0", "\udcff", "[", "zookeeper")
NO_NAMES = {"", ".", "..", "/", "../payroll", "_me", "\udcff"}
IMPOSSIBLE = {"queue": NO_NAMES, "dead_queue": NO_NAMES}
"""Texts that are refused before any effect, by argument."""
TRIED_ELSEWHERE = {"url", "key", "coordination"}
"""See :mod:`tests.client.http.test_arguments`, and ``tests/qdo/unit/zookeeper/test_url.py``."""
NUMBERS = {"limit", "partition", "ttl", "watch"}
FILES = {"config", "profile", "ca"}
"""Options that name the caller's files."""
USUAL = {"handler": "operator:eq", "queue": "usual", "to": ID}
"""Arguments that a command requires and that do not take any text."""
ADDRESSES = {
    "metrics": ("{}:0", "{}"),
    "handler": ("{}:loads", "json:{}", "{}"),
    "context": ("{}:loads", "json:{}", "{}"),
}
"""Templates for arguments with several parts."""
TRIED_WHOLLY = {("work",)}
"""Commands that get all of these arguments; elsewhere the text is tried alone."""


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - of typer
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, given in command.commands.items():
        yield from _commands(command.load(name) if hasattr(command, "load") else given, (*path, name))


def _is_text(parameter: Any) -> bool:  # noqa: ANN401 - of typer
    line = table().get(parameter.name)
    is_text = parameter.name not in NUMBERS if line is None else line.type in {"text", "texts"}
    return is_text and not getattr(parameter, "is_flag", False) and parameter.name not in FILES | TRIED_ELSEWHERE


CASES = {
    f"{' '.join(path)} {each.opts[0]} {form}": (path, command, each, form)
    for name in COMMANDS
    if name != "curator"
    for path, command in _commands(load(name), (name,))
    for each in command.params
    if _is_text(each)
    for form in (ADDRESSES.get(each.name, ("{}",)) if path in TRIED_WHOLLY else ("{}",))
}


def _answer(request: httpx2.Request) -> httpx2.Response:
    path = request.url.path
    if path == "/v1/":
        return httpx2.Response(200, json={"name": "queuey", "id": "a" * 32, "version": "1", "store": "sqlite"})
    if request.method == "GET" and "/_groups/" in path:
        group = {"status": "ok", "group": "usual", "centre": "", "epoch": 1, "unassigned": 0}
        return httpx2.Response(200, json=group | {"members": [], "queues": {}})
    if request.method == "GET" and path.count("/") == 3 and not path.rpartition("/")[2]:
        return httpx2.Response(200, json={"status": "ok", "queues": [], "names": []})
    return httpx2.Response(404, json={"status": "error", "error_msg": {"QueueNotFound": "there is none"}})


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Records the requests to the service, which has nothing; workers end at once."""
    records: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        records.append(read_request(request))
        return _answer(request)

    begin = AsyncSender.__init__

    def sender(self: AsyncSender, *given: Any, transport: Any = None, **options: Any) -> None:  # noqa: ANN401
        begin(self, *given, transport=httpx2.MockTransport(answer), **options)

    async def serve(worker: Worker, *, signals: bool) -> int:
        return 0

    for name in [name for name in os.environ if name.startswith(("QUEUEY_", "QDO_"))]:
        monkeypatch.delenv(name)
    for name, value in {"QUEUEY_URL": "http://127.0.0.1:9", "QUEUEY_KEY": "key", "QDO_GROUP": "usual"}.items():
        monkeypatch.setenv(name, value)
    with replace(AsyncSender.__init__, sender), replace(Worker.serve, serve):
        yield records


def _command_line(path: tuple[str, ...], command: Any, tried: Any, text: str) -> list[str]:  # noqa: ANN401 - of typer
    """Returns the arguments of a command: a text for the tried parameter, usual values for required ones."""
    options, arguments = [], []
    for option in command.params:
        usual = "latest" if (path[-1], option.name) == ("reset", "to") else USUAL.get(option.name, "usual")
        value = text if option is tried else usual
        if not option.opts[0].startswith("-"):
            arguments.append(value)
        elif option is tried or option.required or (option.name == "queue" and path[0] in {"work", "deadletter"}):
            options += [option.opts[0], value]
        elif option.name in {"yes", "dry_run"}:
            options.append(option.opts[0])
    return [*path, *options, "--", *arguments]


def _names(error: str, text: str) -> bool:
    return error.startswith("Usage:") or any(each in error for each in (text, repr(text)[1:-1], repr(text.strip())))


def _faults(name: str, reached: list[Any], run: Run) -> Iterator[str]:
    """Yields what is wrong, in ASCII: test reports cannot contain half of a character."""
    path, command, tried, form = CASES[name]
    run(*_command_line(path, command, tried, form.format(MARKER)))
    usual = list(reached)
    for text in TEXTS:
        reached.clear()
        ended = run(*_command_line(path, command, tried, form.format(text)))
        wanted = replace_marker(usual, MARKER, text)
        has_syntax = tried.name == "pattern" and (text in {"", "."} or not SYNTAX.isdisjoint(text))
        if "Traceback" in ended.err:
            yield ascii((text, ended.err))
        elif not has_syntax and (elsewhere := [each for each in reached if each not in wanted]):
            yield ascii((text, elsewhere, wanted))
        elif ended.code == 2 and not reached and not has_syntax and not _names(ended.err, text):
            yield ascii((text, ended.err))
        elif ended.code != 2 and text in IMPOSSIBLE.get(tried.name, ()):
            yield ascii((text, "is not refused", ended))


@pytest.mark.needs_histories
@pytest.mark.parametrize("name", CASES)
def test_every_argument(name: str, reached: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ends with an error that shows the value, or has effect on exactly what the value names."""
    assert list(_faults(name, reached, make_runner("qdo", main, monkeypatch))) == []
