"""A real service for the commands, which run in this process."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from queuey.cli import main
from queuey.client import Client
from tests.served import Served


class Ended(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """The one JSON document on standard output."""
        (line,) = self.out.splitlines()
        return msgspec.json.decode(line)

    @property
    def json_lines(self) -> list[Any]:
        """The JSON documents on standard output, one a line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for all tests of commands; each makes queues of its own."""
    with Served(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A client of the service, to look behind the command's back."""
    with served.client() as opened:
        yield opened


@pytest.fixture
def run(served: Served, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as ``queuey <arguments>`` would."""
    for name in [name for name in os.environ if name.startswith("QUEUEY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))

    def run_command(*arguments: str, stdin: bytes = b"") -> Ended:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["queuey", *arguments])
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
            patched.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
            patched.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", write_through=True))
            with pytest.raises(SystemExit) as ended:
                main()
            return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue().decode())

    return run_command


@pytest.fixture
def queue(client: Client) -> str:
    """A new queue with three partitions."""
    return client.create_queue(partitions=3).name
