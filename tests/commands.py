"""Commands run in this process, as the shell would run them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pytest

from queuey import client
from tests.replacing import replace_in


class Ended(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        (line,) = self.out.splitlines()
        return msgspec.json.decode(line)

    @property
    def json_lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


def make_runner(name: str, main: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns a function that runs the command ``name`` in this process, and returns its exit code and output.

    The command does not see the variables of the test servers, and must end with SystemExit.
    """

    def run_command(*arguments: str, stdin: bytes = b"") -> Ended:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patched:
            for variable in [each for each in os.environ if each.startswith("QUEUEY_TEST_")]:
                patched.delenv(variable)  # a command would refuse the variables of the test servers as unknown settings
            patched.setattr(sys, "argv", [name, *arguments])
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
            patched.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
            patched.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", write_through=True))
            with pytest.raises(SystemExit) as ended:
                main()
            return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue().decode())

    return run_command


@contextmanager
def simulated_pauses() -> Iterator[list[float]]:
    """Yields the pauses of the clients that commands make in the block. They take no time."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    clock: Callable[[], float] = lambda: sum(slept)  # noqa: E731 - as short as it gets
    timing = partial(client.Timing, clock=clock, sleep=slept.append)
    async_timing = partial(client.AsyncTiming, clock=clock, sleep=sleep)
    with replace_in(client, client.Timing, timing), replace_in(client, client.AsyncTiming, async_timing):
        yield slept
