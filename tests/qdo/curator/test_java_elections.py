"""Elections with Curator's own LeaderSelector and LeaderLatch: one leader among both languages."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from pathlib import Path

import pytest

from qdo.curator.leader import LeaderElection, Recipe
from tests.qdo.contract.zookeeper import kazoo_client
from tests.qdo.curator.queues.queue_nodes import Kazoo
from tests.servers import java_programs
from tests.servers.plugin import ZooKeeper, unique_name
from tests.waiting import PATIENCE_SECONDS, join

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).with_name("Elections.java")
PATIENCE = 120.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a Java contender."""
    return java_programs.build(SOURCE, java_programs.CURATOR, tmp_path_factory.mktemp("java"))


class JavaContender:
    """A contender in a process of its own.

    Args:
        command: The command with its arguments.
    """

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.leading = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "leading\n":
                self.leading.set()
            elif line == "following\n":
                self.leading.clear()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        join(self._reader)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def names(election: LeaderElection) -> list[str]:
    return [each.name for each in election.participants()]


@pytest.mark.parametrize("recipe", Recipe)
def test_one_of_both_languages_leads(program: list[str], zookeeper: ZooKeeper, recipe: Recipe) -> None:
    """Contenders lead one after another, each after the one before was killed or closed."""
    hosts, path = zookeeper.connect_string, f"/{unique_name('elections')}/leader"

    def contender(name: str) -> JavaContender:
        made = JavaContender([*program, hosts, path, recipe.value, name])
        stack.callback(made.kill)
        return made

    def stand(client: Kazoo, name: str) -> LeaderElection:
        made = LeaderElection(client, path, name=name, recipe=recipe)
        stack.callback(made.close)
        made.start()
        return made

    with kazoo_client(hosts, timeout=20) as client, contextlib.ExitStack() as stack:
        first = contender("java 1")
        assert first.leading.wait(PATIENCE)
        second = stand(client, "python 2")
        while names(second) != ["java 1", "python 2"]:
            assert not second.wait(0.1)
        first.kill()
        assert second.wait(PATIENCE)
        third = contender("java 3")
        while names(second) != ["python 2", "java 3"]:
            assert not third.leading.wait(0.1)
        fourth = stand(client, "python 4")
        while names(second) != ["python 2", "java 3", "python 4"]:
            assert not third.leading.is_set()
            assert not fourth.wait(0.1)
        second.close()
        assert third.leading.wait(PATIENCE)
        assert not fourth.leading
        third.end()
        assert fourth.wait(PATIENCE)
        assert names(fourth) == ["python 4"]
