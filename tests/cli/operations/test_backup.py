"""``queuey backup`` and ``queuey restore``."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from queuey.client import Client
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from tests.commands import Run
from tests.servers.served import Served


def test_back_up_and_restore(run: Run, served: Served, client: Client, queue: str, tmp_path: Path) -> None:
    """A backup made beside the service is restored elsewhere; both commands list its contents."""
    client.send(queue, "kept")
    file, new = str(tmp_path / "b.sqlite3"), str(tmp_path / "new")
    ended = run("backup", file, "--data", str(served.data))
    assert (ended.code, ended.err) == (0, "")
    with closing(open_store(served.data)) as store:  # other tests may have added applications and keys
        names = bridge.run(store.applications.application_names())
        keys = sum(len(bridge.run(store.applications.keys(name))) for name in names)
    assert re.match(rf"{re.escape(file)} is a backup: {len(names)} applications?, {keys} keys?, ", ended.text)
    assert "MiB, checked." in ended.text
    made = run("restore", file, "--data", new, "--json")
    assert made.code == 0
    assert made.json["store"] == new
    assert made.json["sha256"] in Path(f"{file}.sha256").read_text()
    assert made.json["queues"] >= 1
    assert made.json["messages"] >= 1
    assert made.json["replaced"] is False
    assert "Revoke again the keys" in made.err
    with closing(open_store(tmp_path / "new")) as store:
        assert bridge.run(store.catalogue.queue("queuey", queue)).partitions == 3
    Path(f"{file}.sha256").unlink()
    assert run("restore", file, "--data", new, "--yes").text.endswith("checked, but without a checksum file.\n")


def test_nothing_is_replaced_unasked(run: Run, served: Served, tmp_path: Path) -> None:
    """An existing file or store is replaced only after a yes."""
    file, new = str(tmp_path / "b"), str(tmp_path / "new")
    data = str(served.data)
    assert run("backup", file, "--data", data).code == 0
    assert run("restore", file, "--data", new).code == 0
    for again in (["backup", file, "--data", data], ["restore", file, "--data", new]):
        ended = run(*again)
        assert (ended.code, "repeat with --yes" in ended.err, ended.out) == (2, True, b"")
        assert run(*again, "--yes").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["backup", "b", "--data", "typo"], 1, "there is no store at typo"),
        (["backup", "nowhere/b", "--data", "data"], 2, "'nowhere/b' is not a file in an existing directory"),
        (["backup", "data", "--data", "data"], 2, "'data' is not a file in an existing directory"),
        (["backup", "/dev/null", "--data", "data", "--yes"], 2, "'/dev/null' is not a file"),
        (["backup", "data/queuey.sqlite3", "--data", "data", "--yes"], 2, "is the store itself"),
        (["backup", "data/queuey.sqlite3-wal", "--data", "data"], 2, "is the store itself"),
        (["restore", "b", "--data", "data"], 2, "there is no file 'b'"),
        (["restore", "data/queuey.sqlite3", "--data", "data", "--yes"], 2, "is the store itself"),
        (["restore", "text", "--data", "data", "--yes"], 1, "text is not a backup, or is damaged"),
        (["backup", "b", "--store", "cassandra://127.0.0.1/k"], 2, "backed up on each node by nodetool"),
        (["restore", "text", "--store", "cassandra://127.0.0.1/k"], 2, "backed up on each node by nodetool"),
    ],
)
def test_invalid_paths_are_refused_by_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    """Wrong files, directories and stores are refused by their names, with nothing made or changed."""
    monkeypatch.chdir(tmp_path)
    open_store(tmp_path / "data").close()
    (tmp_path / "text").write_text("no backup\n" * 1000)
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    ended = run(*arguments)
    flat = " ".join(ended.err.replace("│", " ").split())
    assert (ended.code, words in flat, ended.out) == (code, True, b""), ended.err
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before
