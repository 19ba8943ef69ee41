"""Each version's record, read with the present code: its store, its requests, its answers, its tables."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import apsw
import httpx2
import pytest
from packaging.version import Version

import queuey
from queuey.client import Client
from queuey.storage.sqlite import open_store, schema
from tests.releases import keyspaces, recording
from tests.releases.compared import differences
from tests.releases.recording import KEY, URL, Exchange, Released, folders

FOLDERS = folders()


@pytest.fixture(params=FOLDERS, ids=[folder.name for folder in FOLDERS])
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def released(folder: Path) -> Released:
    return recording.read(folder)


@pytest.fixture
def data(folder: Path, tmp_path: Path) -> Path:
    recording.unpack(folder / "store.gz", tmp_path / "data" / "queuey.sqlite3")
    return tmp_path / "data"


def test_each_version_has_a_record() -> None:
    """Each folder has the record of its version, and the present version has one, unless it is still in development."""
    versions = [Version(recording.read(folder).version) for folder in FOLDERS]
    assert [f"v{version.base_version}".replace(".", "_") for version in versions] == [one.name for one in FOLDERS]
    present = Version(queuey.__version__)
    assert versions[-1] == present or present.is_devrelease


@pytest.mark.needs_programs
def test_each_record_has_its_commit(folder: Path, released: Released) -> None:
    """The commit that wrote a record carries its version, and has the files in ``cql`` that the record names."""
    commit = recording.commit_of(folder)
    text = recording.from_git("show", f"{commit}:queuey/__init__.py").decode()
    assert f'__version__ = "{released.version}"' in text
    names = recording.from_git("ls-tree", "--name-only", f"{commit}:cql").decode().split()
    assert names == sorted(keyspaces.read(folder).files)


def test_store_opens(released: Released, data: Path) -> None:
    """The store of a version opens, and every row is as that version wrote it."""
    with recording.opened(data, released.clock) as store:
        assert differences(released.rows, recording.rows(store)) == []


def test_requests_get_their_answers(released: Released, data: Path) -> None:
    """The requests of a version's client get the answers that they got then, on the store of then."""
    with recording.opened(data, released.clock) as store, recording.served(store) as service:
        for exchange in released.exchanges:
            service.handle_request(request_of(exchange)).read()
    assert len(service.exchanges) == len(released.exchanges)
    for before, now in zip(released.exchanges, service.exchanges, strict=True):
        assert now.status == before.status, now
        answers = [before.answer_headers, before.answer], [now.answer_headers, now.answer]
        assert differences(*answers) == [], now.path


def request_of(exchange: Exchange) -> httpx2.Request:
    headers = {"authorization": f"Application {KEY}"} | exchange.headers
    url = URL.partition("/v1/")[0] + exchange.path
    return httpx2.Request(exchange.method, url, headers=headers, content=recording.written(exchange.sent))


def request_parts(method: str, path: str) -> dict[str, str]:
    split = urlsplit(path)
    return {"method": method, "path": split.path} | dict(parse_qsl(split.query))


class Replayed(httpx2.BaseTransport):
    """A transport to a version's service: it gives the recorded answers, in order, to the recorded requests."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._exchanges = iter(exchanges)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        recorded = next(self._exchanges)
        path = request.url.raw_path.decode()
        assert differences(request_parts(recorded.method, recorded.path), request_parts(request.method, path)) == []
        assert differences(recorded.sent, recording.readable(request.read())) == []
        answer = recording.written(recorded.answer)
        return httpx2.Response(recorded.status, headers=recorded.answer_headers, content=answer)


def test_client_reads_old_answers(folder: Path, released: Released) -> None:
    """A program of a version runs unchanged on the present client, with the answers of that version's service."""
    program = importlib.import_module(f"tests.releases.{folder.name}.program")
    with Client(URL, key=KEY, transport=Replayed(released.exchanges)) as client:
        answers = {name: recording.plain(answer) for name, answer in program.ask(client, released.kept)}
    assert differences(released.answers, answers) == []


def test_tables_of_cassandra_stay(folder: Path) -> None:
    """The files of Cassandra's tables are never edited once they are recorded; new ones come after them."""
    recorded, present = keyspaces.read(folder).files, keyspaces.schema_hashes()
    assert {name: present.get(name) for name in recorded} == recorded
    assert sorted(present)[: len(recorded)] == sorted(recorded)


def sqlite_tables(file: Path) -> Iterator[object]:
    with closing(apsw.Connection(str(file))) as connection:
        yield from connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name")


def test_tables_of_sqlite_stay(data: Path, tmp_path: Path) -> None:
    """A format of SQLite files has the tables that were recorded with it: other tables have another number."""
    file = data / "queuey.sqlite3"
    open_store(tmp_path / "new").close()
    with closing(apsw.Connection(str(file))) as connection:
        recorded_format = connection.pragma("user_version")
    same_tables = [*sqlite_tables(file)] == [*sqlite_tables(tmp_path / "new" / file.name)]
    assert same_tables == (recorded_format == schema.FORMAT)
