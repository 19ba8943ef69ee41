"""What ``queuey pipeline archive`` and ``replay`` refuse before they start Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queuey.cli import main
from queuey.spark.session import session
from queuey.storage.sqlite import open_store
from tests.commands import Run, runner
from tests.replacing import replace


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command on a store with one application, and fails if it starts Spark."""
    with closing(open_store(tmp_path)) as store:
        store.create_application("acme")

    def start(**_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setenv("QUEUEY_DATA", str(tmp_path))
    with replace(session, start):
        yield runner("queuey", main, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["archive", "a"], "--to"),
        (["archive", "--to", "x"], "name queues, or give --pattern"),
        (["archive", "a", "--pattern", "b", "--to", "x"], "name queues, or give --pattern"),
        (["archive", "--pattern", "(", "--to", "x"], "no regular expression"),
        (["archive", "a", "--to", "x", "--bucket", "soon"], "no length of time"),
        (["archive", "a", "--to", "x", "--bucket", "90d"], "from 1 s to 31 d"),
        (["archive", "a", "--to", "x", "--stream"], "checkpoint"),
        (["archive", "a", "--to", "x", "--once"], "goes with --stream"),
        (["archive", "a", "--to", "x", "--stream", "--checkpoint", "c", "--check"], "goes without --check"),
        (["archive", "a", "--to", "x", "--stream", "--checkpoint", "c", "--dry-run"], "goes without --dry-run"),
        (["replay"], "Missing argument"),
        (["replay", "x", "--from", "soon"], "no position in time"),
        (["replay", "x", "--from", "-1h", "--to", "-2h"], "has to end after it begins"),
        (["replay", "x", "--ttl", "1h", "--keep-expiry"], "either messages keep"),
        (["replay", "x", "--ttl", "2000d"], "a TTL is 1 second to"),
        (["replay", "x", "--run", ""], "the name of a run"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], said: str) -> None:
    """What cannot be done is said at once, by the option's name, with exit code 2."""
    ended = run("pipeline", *arguments)
    assert ended.code == 2, ended.err
    assert " ".join(ended.err.replace("│", " ").split()).count(said), ended.err
