"""Every argument of every command of qdo is refused, or has effect on exactly what it names.

The arguments are those that the commands declare. The requests to the service and the coordination are compared with
those for a normal text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx2
import pytest

from qdo.cli import COMMANDS, load, main
from qdo.cli.settings import table
from qdo.coordination import zookeeper
from qdo.coordination.paths import decode
from qdo.coordination.tree import Change, Link, NodeData, Outcome, State
from qdo.coordination.zookeeper import ConnectionOptions, ZooKeeperLink
from qdo.curator import place
from qdo.errors import CoordinationRefused
from qdo.worker.worker import Worker
from queuey.client._async.sender import AsyncSender
from tests.client.http.test_arguments import ID, read_request, replace_marker
from tests.commands import Run, make_runner
from tests.replacing import replace, replace_in

MARKER = "m4rker"
SYNTAX = frozenset("/?#%[,")
"""Characters that have a meaning in a URL, or in a pattern."""
TEXTS = ("", ".", "..", "/", "?", "#", "%2F", "../payroll", "_me", "ü\n", "\0", "\udcff", "[", "zookeeper")
NO_NAMES = {"", ".", "..", "/", "../payroll", "_me", "\udcff"}
NO_PATHS = {".", "..", "/", "../payroll", "ü\n", "\0", "\udcff"}
IMPOSSIBLE = {"queue": NO_NAMES, "dead_queue": NO_NAMES, "path": NO_PATHS, "lock_path": NO_PATHS}
"""Texts that are refused before any effect, by argument."""
TRIED_ELSEWHERE = {"url", "key"}
"""See :mod:`tests.client.http.test_arguments`."""
NUMBERS = {"limit", "node_limit", "partition", "priority", "ttl", "watch"}
FILES = {"config", "profile", "ca"}
"""Options that name the caller's files."""
USUAL = {"handler": "operator:eq", "path": "/usual", "queue": "usual", "to": ID}
"""Arguments that a command requires and that do not take any text."""
ADDRESSES = {
    "coordination": ("zookeeper://h/{}", "zookeeper://{}/a", "{}"),
    "path": ("/{}", "/a/{}", "/{}/b", "{}"),
    "lock_path": ("/{}", "/a/{}", "/{}/b", "{}"),
    "metrics": ("{}:0", "{}"),
    "handler": ("{}:loads", "json:{}", "{}"),
    "context": ("{}:loads", "json:{}", "{}"),
}
"""Templates for arguments with several parts."""
TRIED_WHOLLY = {("work",), ("offsets", "show"), ("curator", "drain")}
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
    for path, command in _commands(load(name), (name,))
    for each in command.params
    if _is_text(each)
    for form in (ADDRESSES.get(each.name, ("{}",)) if path in TRIED_WHOLLY else ("{}",))
}


class RecordingLink(Link):
    """An empty tree, which records its place and the nodes of requests.

    Args:
        where: The place of the tree.
        reached: Gets the records.
        name_of: Returns the name that a node stands for.
    """

    session = 1
    state: State = "connected"
    timeout = 10.0
    finished = True

    def __init__(self, where: tuple[str, ...], reached: list[Any], name_of: Callable[[str], str] = decode) -> None:
        super().__init__(0.0)
        self._where = where
        self._reached = reached
        self._name_of = name_of

    def _record(self, paths: Iterable[str]) -> list[None]:
        nodes = [path.split("/")[1:] if path != "/" else [] for path in paths]
        self._reached += [[*self._where, *map(self._name_of, names)] for names in nodes]
        return [None] * len(nodes)

    async def open(self) -> None:
        self._record(["/"])

    async def close(self) -> None: ...

    def end(self, why: Exception) -> None: ...

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        return [*self._record(paths)]

    stat = read

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        return [*self._record(paths)]

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        raise CoordinationRefused("a test ends here")

    apply_each = apply

    async def sync(self, path: str) -> None:
        self._record([path])


def _answer(request: httpx2.Request) -> httpx2.Response:
    path = request.url.path
    if path == "/v1/":
        return httpx2.Response(200, json={"name": "queuey", "id": "a" * 32, "version": "1", "store": "sqlite"})
    if request.method == "GET" and path.count("/") == 3 and not path.rpartition("/")[2]:
        return httpx2.Response(200, json={"status": "ok", "queues": [], "names": []})
    return httpx2.Response(404, json={"status": "error", "error_msg": {"QueueNotFound": "there is none"}})


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Records the requests to the service and the coordination, which have nothing; workers end at once."""
    records: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        records.append(read_request(request))
        return _answer(request)

    begin = AsyncSender.__init__

    def sender(self: AsyncSender, *given: Any, transport: Any = None, **options: Any) -> None:  # noqa: ANN401
        begin(self, *given, transport=httpx2.MockTransport(answer), **options)

    def group_at(access: ConnectionOptions, *_: object) -> RecordingLink:
        return RecordingLink(("servers", access.hosts), records)

    def queue_at(access: ConnectionOptions, *_: object) -> RecordingLink:
        return RecordingLink(("servers", access.hosts), records, str)

    async def serve(worker: Worker, *, signals: bool) -> int:
        return 0

    for name in [name for name in os.environ if name.startswith(("QUEUEY_", "QDO_"))]:
        monkeypatch.delenv(name)
    for name, value in {"QUEUEY_URL": "http://127.0.0.1:9", "QUEUEY_KEY": "key", "QDO_GROUP": "usual"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("QDO_COORDINATION", "zookeeper://h/usual")
    with (
        replace(AsyncSender.__init__, sender),
        replace_in(zookeeper, ZooKeeperLink, group_at),
        replace_in(place, ZooKeeperLink, queue_at),
        replace(Worker.serve, serve),
    ):
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
    if path[0] == "curator" and tried.name != "coordination":
        options += ["--coordination", "zookeeper://h/usual"]
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
        has_syntax = tried.name in {"coordination", "pattern"} and (text in {"", "."} or not SYNTAX.isdisjoint(text))
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
