"""Servers that belong together: started at once, ended at once, with one directory and one block of addresses."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

from deploy.local.addresses import Block
from deploy.local.errors import StartFailed
from deploy.local.server import START_SECONDS, Server

AnyServer = TypeVar("AnyServer", bound=Server)


_RUNNING: WeakSet[Cluster[Any]] = WeakSet()


def running() -> list[Cluster[Any]]:
    """Returns the clusters that this process started and has not closed."""
    return list(_RUNNING)


class Home:
    """The directory of a cluster: temporary, or a given one that is kept."""

    def __init__(self, kind: str, keep: Path | None) -> None:
        self.kept = keep is not None
        self.path = Path(tempfile.mkdtemp(prefix=f"queuey-{kind}-")) if keep is None else keep.absolute()

    @property
    def path_to_remove(self) -> Path | None:
        return None if self.kept else self.path

    def close(self) -> None:
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)


class Cluster(Generic[AnyServer]):
    """Running servers of one kind. Close it, or use it in a ``with`` statement.

    Args:
        home: The directory of all servers.
        block: The addresses of all servers.
        nodes: The servers, which are not started yet.
    """

    def __init__(self, home: Home, block: Block, nodes: Sequence[AnyServer]) -> None:
        self.home = home
        self.block = block
        self.nodes = tuple(nodes)
        self.start_seconds = 0.0

    def start(self, seconds: float = START_SECONDS) -> None:
        """Starts all servers at once and waits until each serves clients and knows the others.

        Raises:
            StartFailed: A server ended or did not answer in time. Then the cluster is closed.
        """
        began = time.monotonic()
        try:
            self._start(began + seconds)
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.monotonic() - began
        _RUNNING.add(self)

    def restore(self, seconds: float = START_SECONDS) -> None:
        """Resumes paused servers, starts ended ones again, and waits as :meth:`start` does.

        Raises:
            StartFailed: A server ended or did not answer in time. The cluster stays open.
        """
        for node in self.nodes:
            node.resume()
        self._start(time.monotonic() + seconds)

    def is_settled(self) -> bool:
        """Returns whether all servers serve clients and, for Cassandra, see each other."""
        return all(node.answers() for node in self.nodes)

    def wait_until_settled(self, seconds: float = START_SECONDS) -> None:
        """Waits until :meth:`is_settled`, as after a node was started again.

        Raises:
            StartFailed: It took too long.
        """
        self._await_condition(self.is_settled, time.monotonic() + seconds, "The nodes do not find each other.")

    def log_tail(self, lines: int = 60) -> str:
        """Returns the last lines of each server's log and output."""
        return "\n".join(node.log_tail(lines) for node in self.nodes)

    def close(self) -> None:
        """Ends all servers by SIGKILL, removes their directory unless it is kept, and releases the addresses."""
        _RUNNING.discard(self)
        for node in self.nodes:
            node.kill()
        self.home.close()
        self.block.release()

    def _start(self, deadline: float) -> None:
        """Starts all servers that are not alive, and waits until all serve clients and know the others."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_until_serving(deadline)
        self._await_condition(self.is_settled, deadline, "The nodes do not find each other.")

    def _await_condition(self, reached: Callable[[], bool], deadline: float, otherwise: str) -> None:
        while not reached():
            if time.monotonic() > deadline:
                raise StartFailed(f"{otherwise}\n{self.log_tail()}")
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(self.log_tail())  # the logs are about to be removed
        self.close()
