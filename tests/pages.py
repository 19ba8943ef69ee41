"""Pages of the documentation, and somebody who types what they say."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from tests.servers.served import Served, environment

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent


class Block(NamedTuple):
    """One fenced block of a page: its language, its text, and the line it begins at."""

    language: str
    text: str
    line: int


def blocks(page: str, *, below: str = "") -> list[Block]:
    """The fenced blocks of a page, or of one of its sections."""
    text = (ROOT / page).read_text()
    start = text.index(f"\n## {below}\n") if below else 0
    end = text.find("\n## ", start + 1) if below else len(text)
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text[start : end if end > 0 else len(text)], re.DOTALL | re.MULTILINE)
    return [Block(match[1], match[2], text[: start + match.start()].count("\n") + 2) for match in found]


def examples(thing: object) -> list[Block]:
    """The examples in the docstring of a class or function: the indented texts after ``::``."""
    found = re.finditer(r"^::\n\n((?:    .*\n|\n)+)", (inspect.getdoc(thing) or "") + "\n", re.MULTILINE)
    return [Block("python", textwrap.dedent(match[1]), 1) for match in found]


class Reader:
    """Somebody who types what a page says, beside a service that runs already.

    Args:
        served: The service.
        directory: Where they work.
        variables: What they have set beside the profile and the data directory.
    """

    def __init__(self, served: Served, directory: Path, **variables: str) -> None:
        self._directory = directory
        self._names: dict[str, object] = {}
        self._environment = environment(
            PATH=f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            QUEUEY_PROFILE=str(served.profile_path),
            QUEUEY_DATA=str(served.data),
            **variables,
        )

    def run(self, page: str, block: Block) -> str:
        """Runs a block; returns what a command printed."""
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), self._names)
            return ""
        ended = subprocess.run(
            ["/bin/sh", "-eu", "-c", block.text],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, f"{page}:{block.line}\n{block.text}\n{ended.stdout}{ended.stderr}"
        return ended.stdout
