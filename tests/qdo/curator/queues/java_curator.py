"""Curator itself, in a Java program that executes a test's requests."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from tests.qdo.curator.queues.queue_nodes import PATIENCE
from tests.servers import java_programs

SOURCE = Path(__file__).with_name("CuratorCalls.java")


def build(directory: Path) -> list[str]:
    """Compiles the program; returns the command that runs it."""
    return java_programs.build(SOURCE, java_programs.CURATOR, directory)


class JavaCurator(java_programs.JavaProgram):
    """A process with Curator, in a session of its own.

    Args:
        command: The result of :func:`build`.
        hosts: The addresses of the servers.
        session: Session timeout in seconds.
    """

    def __init__(self, command: list[str], hosts: str, session: float = 30.0) -> None:
        super().__init__([*command, hosts, str(int(session * 1000))], lambda line: "\t" in line)
        self._answers: queue.Queue[list[str]] = queue.Queue()
        self._messages: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, *words: object) -> str:
        self.tell("\t".join(map(str, words)))
        kind, result = self._answers.get(timeout=PATIENCE)
        assert kind == "done", result
        return result

    def open(self, kind: str, path: str, lock_path: str = "", *, consume: bool = False) -> None:
        """Opens one of the five queues in place of the former one, and drops the messages received so far."""
        self._messages = queue.Queue()
        self.call("open", kind, path, lock_path, "consume" if consume else "")

    def put(self, *messages: str, more: object = "") -> None:
        """Puts messages in one node, with a priority, an instant or an id."""
        self.call("put", ",".join(messages), more)

    def next_message(self) -> str:
        return self._messages.get(timeout=PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self._reader.join(PATIENCE)
        super().close()

    def _read(self) -> None:
        try:
            while True:
                kind, _, rest = self.read_answer().rstrip("\n").partition("\t")
                if kind == "got":
                    self._messages.put(rest)
                else:
                    self._answers.put([kind, rest])
        except AssertionError:
            return  # it has ended
