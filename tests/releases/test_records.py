"""Each release's record, read with the present code: its store, its requests, its answers, its groups, its tables."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from packaging.version import Version

import queuey
from qdo.coordination.service.former_file import read_group
from queuey.client import Client
from queuey.groups.ownership import OwnedOffset
from queuey.groups.state import GroupChange, Head
from queuey.messages import QueueSpec
from queuey.storage import bridge
from tests.releases import keyspaces, recording
from tests.releases.compared import DRAWN, differences
from tests.releases.recording import KEY, URL, Exchange, Released, folders

FOLDERS = folders()
MENDED = {
    ("v0_1_0", "/v1/acme/jobs/claims"): {"claimed", "waiting"},
    ("v0_1_0", "/v1/acme/jobs/backlog"): {"claimed", "failed", "waiting"},
}
"""Fields with wrong values in answers of a release: a job in backoff counted as claimed."""


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


def test_each_release_has_a_record() -> None:
    """The present version has a record, unless it is still in development."""
    versions = [Version(recording.read(folder).version) for folder in FOLDERS]
    assert [f"v{version}".replace(".", "_") for version in versions] == [folder.name for folder in FOLDERS]
    present = Version(queuey.__version__)
    assert versions[-1] == present or present.is_devrelease


@pytest.mark.needs_programs
@pytest.mark.parametrize("version", recording.COMMITS)
def test_each_release_has_its_commit(version: str) -> None:
    """The commit of a release is in the history, carries its version, and has a record here."""
    text = recording.from_git(version, "show", "{commit}:queuey/__init__.py").decode()
    assert f'__version__ = "{version}"' in text
    assert version in [recording.read(folder).version for folder in FOLDERS]


def test_store_opens(released: Released, data: Path) -> None:
    """The store of a release opens, and every row is as the release wrote it."""
    with recording.opened(data, released.clock) as store:
        assert differences(released.rows, recording.rows(store)) == []


def test_queues_get_what_is_new(released: Released, data: Path) -> None:
    """A queue that a release made is open and keeps no results, and can do otherwise; its partitions get owners."""
    with recording.opened(data, released.clock) as store:
        [queue, *_] = bridge.run(store.catalogue.list_queues("acme"))
        assert (queue.claims, queue.result_ttl) == ("open", 0)
        queue = bridge.run(store.catalogue.update_queue(queue, QueueSpec(claims="paused", result_ttl=60)))
        assert queue.claims == "paused"
        recorded = bridge.run(store.offsets.owned_offsets(queue, "readers"))
        assert bridge.run(
            store.offsets.hand_over(queue, "readers", recorded.version, [OwnedOffset(1, owner=1, epoch=1)])
        )
        assert bridge.run(store.groups.change_group("acme", "readers", 0, GroupChange(Head(epoch=1), ()))) is not None
        bridge.run(store.groups.renew_session("acme", "readers", 1, 3000))
    with recording.opened(data, released.clock) as store:
        queue = bridge.run(store.catalogue.queue("acme", queue.name))
        assert (queue.claims, queue.result_ttl) == ("paused", 60)
        assert bridge.run(store.offsets.owned_offsets(queue, "readers")).rows[1].owner == 1
        assert set(bridge.run(store.groups.group_sessions("acme", "readers")).members) == {1}


def test_requests_get_their_answers(folder: Path, released: Released, data: Path) -> None:
    """The requests of a release's client get the answers that they got then, on the store of then."""
    with recording.opened(data, released.clock) as store, recording.served(store) as service:
        for exchange in released.exchanges:
            service.handle_request(request_of(exchange)).read()
    assert len(service.exchanges) == len(released.exchanges)
    for before, now in zip(released.exchanges, service.exchanges, strict=True):
        assert now.status == before.status, now
        drawn = DRAWN | MENDED.get((folder.name, now.path), set())
        answers = [before.answer_headers, before.answer], [now.answer_headers, now.answer]
        assert differences(*answers, drawn=drawn) == [], now.path


def request_of(exchange: Exchange) -> httpx2.Request:
    headers = {"authorization": f"Application {KEY}"} | exchange.headers
    url = URL.partition("/v1/")[0] + exchange.path
    return httpx2.Request(exchange.method, url, headers=headers, content=recording.written(exchange.sent))


def request_parts(method: str, path: str) -> dict[str, str]:
    split = urlsplit(path)
    return {"method": method, "path": split.path} | dict(parse_qsl(split.query))


class Replayed(httpx2.BaseTransport):
    """A transport to a release's service: it gives the recorded answers, in order, to the recorded requests."""

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
    """A program of a release runs unchanged on the present client, with the answers of that release's service."""
    program = importlib.import_module(f"tests.releases.{folder.name}.program")
    with Client(URL, key=KEY, transport=Replayed(released.exchanges)) as client:
        answers = {name: recording.plain(answer) for name, answer in program.ask(client, released.kept)}
    assert differences(released.answers, answers) == []


def test_groups_keep_their_offsets(tmp_path: Path) -> None:
    """The import reads every offset that groups of 0.1.0 left in a file, long lists too; their members are dropped."""
    recording.unpack(FOLDERS[0] / "groups.gz", tmp_path / "groups.sqlite3")
    for group, recorded in json.loads((FOLDERS[0] / "groups.json").read_text()).items():
        state = read_group(tmp_path / "groups.sqlite3", group)
        assert state is not None
        assert {str(partition): offset for partition, offset in state.offsets.items()} == {
            partition: offset["id"] for partition, offset in recorded["offsets"].items()
        }
        assert (state.living, state.imported) == ([], frozenset())
    assert read_group(tmp_path / "groups.sqlite3", "unheard-of") is None


def test_tables_stay(folder: Path) -> None:
    """The files of Cassandra's tables are never edited once they are released; new ones come after them."""
    recorded, present = keyspaces.read(folder).files, keyspaces.schema_hashes()
    assert {name: present.get(name) for name in recorded} == recorded
    assert sorted(present)[: len(recorded)] == sorted(recorded)
