"""Stores in Spark's processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from queuey.model.errors import QueueNotFound, SettingsError
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, StoreOptions, Subscribe
from queuey.storage import bridge
from tests.backends import APP
from tests.spark.kept import Kept


def test_a_process_has_one_open_store_for_the_same_options(embedded: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other options, another process, or the end of the open one give another store, which works."""
    options = embedded.store_options
    store = open_stores.opened(options)
    assert open_stores.opened(msgspec.structs.replace(options)) is store
    other = msgspec.structs.replace(options, settings=(*options.settings, ("readers", "2")))
    assert open_stores.opened(other) is not store
    pid = os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: pid + 1)
        assert open_stores.opened(options) is not store
        open_stores.close_all()
    assert open_stores.opened(options) is store
    open_stores.close_all()
    assert open_stores.opened(options) is not store
    assert bridge.run(open_stores.opened(options).applications.application_names()) == [APP]


def test_no_store_is_made(tmp_path: Path) -> None:
    """A missing embedded store is not created, but reported as a mistake in an option."""
    (tmp_path / "other").mkdir()
    for name in ("none", "other"):
        with pytest.raises(OptionError, match=f"There is no store at {tmp_path / name}"):
            open_stores.opened(StoreOptions((("data", str(tmp_path / name)),)))
    assert [path.name for path in tmp_path.rglob("*")] == ["other"]


@pytest.mark.parametrize(("name", "text"), [("cassandra_timeout", "3"), ("consistency.weak", "delay=9")])
def test_settings_that_cannot_be_used(name: str, text: str) -> None:
    """An invalid setting is reported by the name of its option."""
    options = StoreOptions(((name, text), ("data", "/nowhere")))
    with pytest.raises(SettingsError, match=re.escape(f"{name} from option {name}")):
        open_stores.opened(options)


def test_environment_and_file(embedded: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings also come from the environment and from a file, as for the service."""
    file = tmp_path / "queuey.toml"
    file.write_text(f"data = {embedded.options['data']!r}\nreaders = 3\n")
    monkeypatch.setenv("QUEUEY_SYNC", "normal")
    settings = open_stores.read_settings(StoreOptions(config=str(file)))
    assert (str(settings.data), settings.readers, settings.sync) == (embedded.options["data"], 3, "normal")
    assert bridge.run(open_stores.opened(StoreOptions(config=str(file))).applications.application_names()) == [APP]


def test_the_only_application(embedded: Kept) -> None:
    """The application may be omitted if the store has exactly one."""
    anyone = msgspec.structs.replace(embedded.store_options, application=None)
    store = open_stores.opened(anyone)
    assert open_stores.application(store, anyone) == APP
    bridge.run(embedded.store.applications.create_application("other"))
    with pytest.raises(OptionError, match=f"is needed.*It has 2: {APP}, other"):
        open_stores.application(store, anyone)
    assert open_stores.application(store, embedded.store_options) == APP
    with pytest.raises(OptionError, match="There is no application 'nobody'"):
        open_stores.application(store, msgspec.structs.replace(anyone, application="nobody"))


def test_selected_queues(embedded: Kept) -> None:
    """Queues are found by name and by pattern, past one page of the listing, sorted by name and up to date."""
    for name in ("b", "a", "ab", "c", "aa", "ba", "abc"):
        embedded.queue(name)

    def names(selection: Subscribe | Pattern | Assign) -> list[str]:
        return [queue.name for queue in open_stores.find_selected_queues(embedded.store_options, selection, page=3)]

    assert names(Subscribe(("c", "a"))) == ["a", "c"]
    assert names(Assign((("b", (1,)), ("a", (1,))))) == ["a", "b"]
    assert names(Pattern("a.?")) == ["a", "aa", "ab"]
    assert names(Pattern(".*")) == ["a", "aa", "ab", "abc", "b", "ba", "c"]
    assert names(Pattern("z")) == []
    with pytest.raises(QueueNotFound, match="application 'acme' has no queue 'z'"):
        names(Subscribe(("a", "z")))


def test_names_of_new_queues() -> None:
    """A new queue gets no name that the service would refuse."""
    open_stores.check_name("a=b, ü")
    open_stores.check_name("x" * 50)
    for name in ("x" * 51, "a/b", ""):
        with pytest.raises(OptionError, match="cannot be the name of a queue"):
            open_stores.check_name(name)
