"""Sources of settings, and settings that refuse to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdo.cli import settings
from qdo.cli.settings import WorkSettings, load
from qdo.settings import ConsumerSettings, Retry, WorkerSettings
from queuey.model.errors import SettingsError

PAGE = Path(__file__).parents[3] / "docs" / "qdo-cli.md"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_nearest_source_wins(tmp_path: Path) -> None:
    """The command line beats the environment, which beats the file, which beats the default.

    Texts of the environment are split at commas; paths in the file are relative to it.
    """
    file = write(tmp_path / "qdo.toml", 'attempts = 1\nparallel = 2\ndrain = "3s"\nprofile = "here.toml"\n')
    environ = {"QDO_CONFIG": "missing", "QDO_ATTEMPTS": "4", "QDO_PARALLEL": "5", "QDO_LOG": "", "QDO_MIRROR": "on"}
    settings = load({"attempts": "6", "log": None, "pattern": ["x,y"]}, environ | {"QDO_QUEUE": "a, b,"}, file)
    worker = settings.worker
    assert (worker.retry.attempts, worker.parallel, worker.drain) == (6, 5, 3.0)
    assert (settings.log, settings.pattern, settings.queue) == ("text", ("x,y",), ("a", "b"))
    assert (settings.profile, settings.consumer.mirror) == (tmp_path / "here.toml", True)


def test_the_service_is_named_as_for_queuey() -> None:
    """The client's own variables name the service; other variables of that kind are left alone."""
    environ = {
        "QUEUEY_URL": "http://x",
        "QUEUEY_APP": "a",
        "QUEUEY_KEY": "k",
        "QUEUEY_CA": "ca.pem",
        "QUEUEY_PORT": "1",
    }
    settings = load({}, environ)
    assert (settings.url, settings.app, settings.key, settings.ca) == ("http://x", "a", "k", Path("ca.pem"))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"QDO_ATEMPTS": "1"}, ["QDO_ATEMPTS", "environment", "QDO_ATTEMPTS"]),
        ({"QDO_ATTEMPTS": "-1"}, ["attempts", "QDO_ATTEMPTS", "-1"]),
        ({"QDO_ATTEMPTS": "many"}, ["attempts", "QDO_ATTEMPTS", "many"]),
        ({"QDO_MIRROR": "perhaps"}, ["mirror", "QDO_MIRROR", "perhaps"]),
        ({"QDO_DRAIN": "nan"}, ["drain", "nan"]),
        ({"QDO_ON_FAILURE": "cry"}, ["on_failure", "cry", "dead-letter"]),
        ({"QDO_BY": "name"}, ["by", "QDO_BY", "name"]),
        ({"QDO_METRICS": "9400"}, ["metrics", "9400"]),
        ({"QDO_METRICS": "localhost:99999"}, ["metrics", "65535"]),
        ({"QDO_THREADS": "2", "QDO_PROCESSES": "2"}, ["QDO_THREADS", "QDO_PROCESSES"]),
        ({"QDO_THREADS": "2", "QDO_TIME_LIMIT": "2"}, ["QDO_THREADS", "QDO_TIME_LIMIT"]),
        ({"QDO_RETRY_BASE": "9", "QDO_RETRY_CAP": "3"}, ["retry_base", "QDO_RETRY_CAP"]),
        ({"QDO_RETRY_BASE": "2m"}, ["QDO_RETRY_BASE", "retry_cap", "default"]),
        ({"QDO_CONFIG": "/nowhere/q.toml"}, ["/nowhere/q.toml", "No such file"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_values_name_key_and_source(environ: dict[str, str], words: list[str]) -> None:
    """A setting that refuses to start is named, with its source."""
    with pytest.raises(SettingsError) as caught:
        load({}, environ)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("atempts = 1", ["atempts", "attempts"]),
        ("[worker]\nattempts = 1", ["worker"]),
        ("attempts = ", ["not TOML"]),
        ("group = 5", ["group", "5"]),
        ("attempts = true", ["attempts", "True"]),
        ("queue = 'a b'\nprofile = 5", ["profile", "5"]),
        ("key = 'secret'", ["key", "profile", "QUEUEY_KEY"]),
    ],
    ids=["unknown", "table", "syntax", "number for text", "switch for number", "number for path", "secret"],
)
def test_bad_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    """An error in the settings file names the file and the key, and never shows a secret."""
    file = write(tmp_path / "bad.toml", text)
    with pytest.raises(SettingsError) as caught:
        load({}, {}, file)
    assert [word for word in [str(file), *words] if word not in str(caught.value)] == []
    assert "'secret'" not in str(caught.value)


def test_settings_of_the_library_reach_it() -> None:
    """Without values the library's defaults apply; renamed settings reach their fields."""
    assert load({}, {}) == WorkSettings(consumer=ConsumerSettings(), worker=WorkerSettings())
    environ = {"QDO_RETRY_CAP": "1h", "QDO_NEVER_RETRY": "ValueError", "QDO_DEAD_TTL": "2d", "QDO_GRACE": "2"}
    settings = load({}, environ)
    assert settings.worker == WorkerSettings(retry=Retry(cap=3600.0, never=("ValueError",)), dead_ttl=172_800)
    assert settings.consumer == ConsumerSettings(grace=2.0)


def test_each_setting_is_described() -> None:
    """Each option has a help text of its own and a panel."""
    lines = settings.table().values()
    assert [line.name for line in lines if not line.help or not line.group] == []
    assert len({line.help for line in lines}) == len(lines)


def test_the_page_shows_the_table() -> None:
    """The documentation has every setting, as the program declares it."""
    rows = [
        f"| `{line.name}` | {line.type} | {line.default} | {line.help} |".replace("|  |", "| |")
        for line in settings.table().values()
    ]
    table = "\n".join(["| name | type | default | meaning |", "|---|---|---|---|", *rows]) + "\n"
    assert table in PAGE.read_text()
