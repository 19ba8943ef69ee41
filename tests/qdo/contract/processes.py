"""Members in processes of their own, which a test starts, stops and kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.qdo.contract.events import PATIENCE

ROOT = Path(__file__).parents[3]


class Refused(Exception):
    """A request to a member raised an error of this package; the text is its code."""


class Process:
    """A running ``tests.qdo.contract.member``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, url: str, group: str, member: str, session_timeout: float, max_blocked_seconds: float = 0.0
    ) -> Process:
        """Starts a member's program, and waits until it has joined."""
        words = "tests.qdo.contract.member", url, group, member, str(session_timeout), str(max_blocked_seconds)
        pipe = asyncio.subprocess.PIPE
        started = cls(
            await asyncio.create_subprocess_exec(sys.executable, "-m", *words, stdin=pipe, stdout=pipe, cwd=ROOT)
        )
        assert await started.answer() == "joined"
        return started

    async def ask(self, *request: Any) -> Any:  # noqa: ANN401 - what the member answers
        """Sends a request to the member and returns its answer.

        Raises:
            Refused: The member raised one of our errors.
        """
        self.send_request(*request)
        return await self.answer()

    def send_request(self, *request: Any) -> None:  # noqa: ANN401 - see member.py
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def answer(self) -> Any:  # noqa: ANN401 - what the member answers
        """Returns the member's next answer; raises Refused for an error, and fails if the member has ended."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, f"the member ended with {await self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["done"]

    @property
    def id(self) -> int:
        return self._process.pid

    def signal(self, which: signal.Signals) -> None:
        self._process.send_signal(which)

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        # Its end is known before that of its pipes, and an event loop that stops meanwhile leaves them open.
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.wait_closed()
        await self._process.stdout.read()
