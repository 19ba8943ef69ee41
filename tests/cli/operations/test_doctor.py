"""``queuey doctor`` on the embedded store; for Cassandra see tests/acceptance."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from queuey.model import ids
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, open_store
from queuey.storage.sqlite.connection import FILE
from tests.commands import Run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    open_store(tmp_path / "data").close()
    return tmp_path / "data"


def states_by_check(found: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {finding["check"]: finding["state"] for finding in found["findings"]}


def test_a_sound_store(run: Run, data: Path) -> None:
    """Every check of a sound store is well, each on a line of its own, and the exit code is 0."""
    ended = run("doctor", "--data", str(data))
    assert (ended.code, ended.err) == (0, "")
    names = ["directory", "file system", "disk", "integrity", "acknowledged", "store"]
    assert [line[:2] for line in ended.text.splitlines()] == ["ok"] * len(names)
    assert list(states_by_check(run("doctor", "--data", str(data), "--json").json)) == names


def test_warnings_are_no_failure(run: Run, data: Path) -> None:
    """A store that promises less, or is open to others, is warned of with advice; the exit code stays 0."""
    data.chmod(0o755)
    ended = run("doctor", "--data", str(data), "--sync", "normal", "--json")
    states = states_by_check(ended.json)
    assert (ended.code, states["directory"], states["acknowledged"], states["store"]) == (0, "warn", "warn", "ok")
    advice = {finding["check"]: finding["advice"] for finding in ended.json["findings"]}
    assert advice["directory"] == f"chmod 700 {data}"


def test_a_clock_that_was_ahead(run: Run, data: Path) -> None:
    """Ids that are far ahead of the clock are a warning that says by how much, and what is late."""
    ahead = 400 * 86_400 * ids.TICKS_PER_SECOND
    with closing(open_store(data, options=SqliteOptions(clock=lambda: ids.now_ticks() + ahead))) as store:
        bridge.run(store.ping())
    ended = run("doctor", "--data", str(data), "--json")
    assert (ended.code, states_by_check(ended.json)["store"]) == (0, "warn")
    assert "new ids are 400 d ahead" in ended.json["findings"][-1]["advice"]


def test_a_store_that_is_not_there(run: Run, tmp_path: Path) -> None:
    """A mistyped directory is a failure, and nothing is made there."""
    ended = run("doctor", "--data", str(tmp_path / "typo"))
    assert (ended.code, ended.text.startswith("fail"), (tmp_path / "typo").exists()) == (1, True, False)


def test_a_damaged_store(run: Run, data: Path) -> None:
    """A file with damaged pages fails the check, with the next step."""
    with (data / FILE).open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))
    ended = run("doctor", "--data", str(data), "--json")
    assert (ended.code, ended.json["ok"]) == (1, False)
    (finding,) = (one for one in ended.json["findings"] if one["state"] == "fail")
    assert (finding["check"], "backup" in finding["advice"]) == ("integrity", True)


def test_another_file_of_that_name(run: Run, data: Path) -> None:
    """A file that is not a store fails the check and stays unchanged."""
    (data / FILE).write_text("something else, long enough to be looked at as a database " * 100)
    before = (data / FILE).read_bytes()
    assert run("doctor", "--data", str(data)).code == 1
    assert (data / FILE).read_bytes() == before


def test_settings_that_cannot_be(run: Run, data: Path) -> None:
    """Settings are refused as the service refuses them."""
    ended = run("doctor", "--data", str(data), "--store", "cassandra://127.0.0.1/k")
    assert (ended.code, "data" in ended.err, ended.out) == (2, True, b"")
