"""Programs in other languages share a group with one of Qdo."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import pytest

from queuey.client import EARLIEST, Client, order_of
from tests.javascript.test_node import CLIENT, NODE
from tests.pages import ROOT, blocks
from tests.servers.processes import run_well
from tests.servers.served import Served, environment
from tests.waiting import join, until

EXAMPLES = ROOT / "deploy" / "examples" / "groups"
GO = shutil.which("go")
PARTITIONS = range(1, 5)
GROUP, QUEUE = "billing", "parcels"
HANDLER = """
import os

def handle(message, context):
    os.write(1, f"{message.partition} {message.id} {message.body}\\n".encode())
"""
QDO = [sys.executable, "-m", "qdo", "work", "handling:handle", "--queue", QUEUE, "--group", GROUP]
AGAIN = ["sh", "-c", 'while :; do "$@"; sleep 0.2; done', "supervisor"]
"""Restarts a program whenever it ends."""


@pytest.fixture(params=["go", "node", "client"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Returns the command line of a member: a program, or the loop of the page, with the JavaScript client."""
    if request.param == "go":
        return [*AGAIN, str(_build(tmp_path)), GROUP, QUEUE, "a name"]
    if NODE is None:
        pytest.skip("needs node, which is not installed")
    if request.param == "node":
        return [NODE, str(EXAMPLES / "member.mjs"), GROUP, QUEUE]
    (block,) = (block for block in blocks("docs/groups.md") if block.language == "javascript")
    text = block.text.replace('"queuey-client"', f'"{CLIENT.as_uri()}"')
    (tmp_path / "loop.mjs").write_text(text.replace('"http://127.0.0.1:5000"', "process.env.SERVICE"))
    return [NODE, "loop.mjs"]


def _build(directory: Path) -> Path:
    """Compiles the program in Go, and returns its file.

    The packages that it needs come with Go, and are compiled once. Skips the test without Go.
    """
    if GO is None:
        pytest.skip("needs go, which is not installed")
    built, cache = directory / "member", platformdirs.user_cache_path("queuey-tests") / "go" / "build"
    cache.mkdir(parents=True, exist_ok=True)
    variables = {"GOCACHE": str(cache), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    line = [GO, "build", "-o", str(built), str(EXAMPLES / "member.go")]
    run_well(line, env=os.environ | variables)
    return built


class Group:
    """A group whose members print each message that they handle, as a line of one file.

    Attributes:
        handled: Numbers of the handled messages by partition, in order.
        offsets: Highest offset seen by partition.
    """

    def __init__(self, client: Client, directory: Path, variables: dict[str, str]) -> None:
        self._client = client
        self._variables = environment(**variables)
        self._directory = directory
        self._lines = directory / "handled"
        self._lines.touch()
        self._ends, self._sender = threading.Event(), threading.Thread(target=self._send)
        self.offsets = dict.fromkeys(PARTITIONS, EARLIEST)
        self.sent = 0

    def _send(self) -> None:
        while not self._ends.wait(0.02):
            for partition in PARTITIONS:
                self._client.send(QUEUE, str(self.sent + 1), partition=partition)
            self.sent += 1

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        self._sender.start()
        try:
            yield
        finally:
            self._ends.set()
            join(self._sender)

    @contextlib.contextmanager
    def member(self, line: list[str]) -> Iterator[Callable[[], None]]:
        """Runs a member, and kills it with its children; yields a function that kills them earlier."""
        with (self._directory / "log").open("a") as log, self._lines.open("a") as lines:
            process = subprocess.Popen(
                line, cwd=self._directory, env=self._variables, stdout=lines, stderr=log, start_new_session=True
            )

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(100)

        try:
            yield kill
        finally:
            kill()

    @property
    def handled(self) -> dict[int, list[int]]:
        numbers = defaultdict(list)
        # The last line may be incomplete.
        for line in self._lines.read_text().split("\n")[:-1]:
            partition, _, number = line.split()
            numbers[int(partition)].append(int(number))
        return numbers

    def wait_until_settled(self, members: int) -> None:
        until(lambda: sorted(self._check_loads()) == [len(PARTITIONS) // members] * members, every=0.1)
        before = self._ends_handled()
        until(lambda: all(now > then for now, then in zip(self._ends_handled(), before, strict=True)), every=0.1)

    def _ends_handled(self) -> list[int]:
        handled = self.handled
        return [max(handled[partition], default=0) for partition in PARTITIONS]

    def is_done(self) -> bool:
        self._check_loads()
        ends = {message.partition: message.id for message in self._client.read_all(QUEUE, limit=1000)}
        return ends == self.offsets

    def _check_loads(self) -> list[int]:
        """Returns how many partitions each owner has, [0] if one has none. Offsets may not decrease between calls."""
        owners: dict[int | None, int] = defaultdict(int)
        shown = self._client.consumer_groups.show(GROUP).queues.get(QUEUE, {})
        for partition, owned in shown.items():
            owners[owned.owner] += 1
            offset = owned.offset or EARLIEST
            assert order_of(offset) >= order_of(self.offsets[partition])
            self.offsets[partition] = offset
        return [0] if None in owners else list(owners.values())


def test_a_program_beside_qdo(program: list[str], tmp_path: Path) -> None:
    """A program and a worker of Qdo share partitions, and each takes over in order when the other is killed."""
    (tmp_path / "handling.py").write_text(HANDLER)
    with Served(tmp_path) as served, served.client() as client:
        client.create_queue(QUEUE, partitions=len(PARTITIONS))
        url, application, key = served.profile.url, served.profile.application, served.profile.key
        variables = {"API": f"{url}/v1/{application}", "KEY": key, "SERVICE": url}
        variables |= {"QUEUEY_PROFILE": str(served.profile_path), "QDO_SESSION_TIMEOUT": "6"}
        group = Group(client, tmp_path, variables)
        with contextlib.ExitStack() as stack:
            with group.sending():
                kill_qdo = stack.enter_context(group.member(QDO))
                until(lambda: GROUP in client.consumer_groups.names(), every=0.1)
                group.wait_until_settled(1)
                kill = stack.enter_context(group.member(program))
                group.wait_until_settled(2)
                kill()
                group.wait_until_settled(1)
                stack.enter_context(group.member(program))
                group.wait_until_settled(2)
                kill_qdo()
                group.wait_until_settled(1)
                stack.enter_context(group.member(QDO))
                group.wait_until_settled(2)
            until(group.is_done, every=0.1)
    for numbers in group.handled.values():
        highest = 0
        for number in numbers:
            assert number <= highest + 1, "a message was passed over"
            highest = max(highest, number)
        assert highest == group.sent
