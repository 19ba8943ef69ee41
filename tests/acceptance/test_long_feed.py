"""Feeds of any length are sent in constant memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.served import Served, environment

LINES = 1_000_000
ROOM = 120 << 20
"""Bytes of data that the command may allocate; the feed itself is twice that."""
LIMITED = f"""
import resource
resource.setrlimit(resource.RLIMIT_DATA, ({ROOM}, {ROOM}))
from queuey.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
def test_a_million_lines(tmp_path: Path, pipe: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A million lines from a file or a pipe are stored, by a command that never holds more than a few batches."""
    feed = tmp_path / "feed.jsonl"
    with feed.open("w") as lines:
        lines.writelines(f'{{"n":{number},"text":"{"x" * 200}"}}\n' for number in range(LINES))
    assert feed.stat().st_size > 200 << 20
    with Served(tmp_path) as served, feed.open("rb") as stream:
        command = [sys.executable, "-c", LIMITED, "send", "long", "--create", "--json", "--from"]
        ended = subprocess.run(
            [*command, "-" if pipe else str(feed)],
            stdin=stream,
            stdout=subprocess.PIPE,
            env=environment(QUEUEY_PROFILE=str(served.profile_path)),
            check=True,
        )
        assert json.loads(ended.stdout)["sent"] == LINES
        with served.client() as client:
            (newest,) = client.read("long", order="descending", limit=1).messages
            assert newest.body["n"] == LINES - 1
            assert client.info("long").count > LINES // 2
