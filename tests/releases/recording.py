"""A version's record: its store, all rows as the storage contract shows them, the requests of its client, the answers.

Everything was recorded with a clock that stood still, so the same code gives the same answers at any time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec import structs

from queuey.app.application import make_app
from queuey.client import Client
from queuey.model import ids
from queuey.model.groups import GroupChange, GroupHead, GroupRow, MemberCommit, OwnedOffset
from queuey.model.messages import OffsetChange, Queue, QueueSpec, Record, Scope, Slice
from queuey.storage import Store, bridge
from queuey.storage.sqlite import SqliteOptions, open_store
from tests.backends import APP, Clock
from tests.in_process import InProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
URL = f"http://127.0.0.1:5000/v1/{APP}/"
KEY = "a-key-of-the-records"
DIGEST = hashlib.sha256(KEY.encode()).digest()
COVERS = {bytes([number]) * 16: ids.TICKS_MAX - number for number in (1, 2)}
WORK = "the work of a job on Spark"
UNRECORDED = {"accept", "accept-encoding", "authorization", "connection", "content-length", "host", "user-agent"}
"""Headers that do not change a request's meaning."""


class Exchange(msgspec.Struct):
    """A request of the client, and the answer; bodies are JSON if possible."""

    method: str
    path: str
    headers: dict[str, str]
    sent: Any
    status: int
    answer_headers: dict[str, str]
    answer: Any


class Released(msgspec.Struct):
    """The record of a version.

    Attributes:
        version: Version of Queuey that wrote it.
        clock: The time at which everything was recorded (ticks).
        kept: Values of the program's first part that the second one needs.
        rows: Rows of the store, see :func:`rows`.
        exchanges: Requests of the second part, in order.
        answers: Answers to the client, by the program's names for them.
    """

    version: str
    clock: int
    kept: dict[str, Any]
    rows: dict[str, Any]
    exchanges: list[Exchange]
    answers: dict[str, Any]


def from_git(*words: str) -> bytes:
    """Returns the output of a git command; skips the test without git history."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git history: this is not a clone, so it has no commit of a record")
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def commit_of(folder: Path) -> str:
    """Returns the last commit that changed a record: its code has written the record."""
    commit = from_git("log", "-1", "--format=%H", "--", str(folder)).decode().strip()
    assert commit, f"No commit has the record {folder.name}. Commit it first"
    return commit


def check_out(folder: Path, target: Path) -> None:
    """Writes the files of a record's commit into a directory; skips the test without git history."""
    subprocess.run(["tar", "x"], cwd=target, input=from_git("archive", commit_of(folder)), check=True)


def folders() -> list[Path]:
    return sorted(
        (file.parent for file in HERE.glob("v*_*_*/__init__.py")),
        key=lambda path: [int(part) for part in path.name[1:].split("_")],
    )


def read(folder: Path) -> Released:
    return msgspec.json.decode(gzip.decompress((folder / "record.gz").read_bytes()), type=Released)


def unpack(packed: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.decompress(packed.read_bytes()))


@contextmanager
def opened(directory: Path, clock: int) -> Iterator[Store]:
    """Opens a SQLite store at a time that stands still; nothing is swept."""
    with closing(open_store(directory, options=SqliteOptions(clock=Clock(clock), sweep_interval=None))) as store:
        yield store


@contextmanager
def served(store: Store) -> Iterator[Recording]:
    transport = InProcess(make_app(store))
    try:
        yield Recording(transport)
    finally:
        transport.close()


class Recording(httpx2.BaseTransport):
    """A transport that records what goes through it."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner = inner
        self.exchanges: list[Exchange] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        content = response.read()
        exchange = Exchange(
            method=request.method,
            path=request.url.raw_path.decode(),
            headers=_told(request.headers),
            sent=readable(request.read()),
            status=response.status_code,
            answer_headers=_told(response.headers),
            answer=readable(content),
        )
        self.exchanges.append(exchange)
        return response

    def client(self) -> Client:
        return Client(URL, key=KEY, transport=self)


def _told(headers: httpx2.Headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in UNRECORDED}


def readable(content: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Returns the JSON of a body; for another body its bytes as text, each byte a character."""
    try:
        return json.loads(content)
    except ValueError:
        return content.decode("latin-1")


def written(body: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Inverse of :func:`readable`."""
    return body.encode("latin-1") if isinstance(body, str) else json.dumps(body).encode()


def fill_rest(store: Store) -> None:
    """Writes what no client's request writes: limited keys, Spark's ledger, a document, covers, groups."""
    bridge.run(
        store.applications.add_key(
            APP, b"k" * 32, expires=4e9, note="limited", scope=Scope(("read", "send"), ("plain", "job*"))
        )
    )
    bridge.run(store.applications.create_application("other"))
    bridge.run(store.identity())
    bridge.run(store.ledger.enter(WORK, 7, b"done", expected=None))
    bridge.run(store.records.set_record(Record("kind", APP, "a document", b"value", ids.TICKS_MAX)))
    bridge.run(store.covers.write_covers(bridge.run(store.catalogue.queue(APP, "dedup")), 1, list(COVERS.items())))
    bridge.run(
        store.groups.change_group(
            APP, "group", 0, GroupChange(GroupHead(epoch=1, born=1), (GroupRow(1, 0, b"member"),))
        )
    )
    bridge.run(store.groups.renew_session(APP, "group", 1, 3000))
    queue = bridge.run(store.catalogue.queue(APP, "plain"))
    owned = bridge.run(store.offsets.owned_offsets(queue, "members")).rows[1]
    commit = MemberCommit(owned.owner, {1: owned.epoch}, {1: b"a note"})
    bridge.run(store.offsets.set_offsets(queue, "members", [OffsetChange(1, ids.LAST)], commit=commit))
    assert bridge.run(store.offsets.hand_over(queue, "left", None, [OwnedOffset(1, owner=1, epoch=1)]))
    left = bridge.run(store.offsets.owned_offsets(queue, "left"))
    bridge.run(store.offsets.delete_group(queue, "left", disown=left.version))
    deleted, _ = bridge.run(store.catalogue.create_queue(APP, "gone", QueueSpec()))
    bridge.run(store.catalogue.delete_queue(bridge.run(store.catalogue.purge_queue(deleted))))


def rows(store: Store) -> dict[str, Any]:
    queues = bridge.run(store.catalogue.list_queues(APP))
    content: dict[str, object] = {
        "applications": [str(one) for one in bridge.run(store.applications.application_names())],
        "keys": bridge.run(store.applications.keys(APP)),
        "ledger": bridge.run(store.ledger.entry(WORK, 7)),
        "documents": {kind: bridge.run(store.records.records(kind, APP)) for kind in ("kind", "schedule")},
        "named": bridge.run(store.names.find_named(bridge.run(store.catalogue.queue(APP, "plain")), "the name")),
    }
    for queue in queues:
        partitions = range(1, queue.partitions + 1)
        content[queue.name] = {
            "row": queue,
            "messages": [_messages(store, queue, partition) for partition in partitions],
            "extent": bridge.run(store.messages.inspect(queue))[1],
            "offsets": {
                group: bridge.run(store.offsets.group_offsets(queue, group))
                for group in bridge.run(store.offsets.groups(queue))
            },
            "owned": [
                bridge.run(store.offsets.owned_offsets(queue, group, partitions)) for group in ("members", "left")
            ],
            "log": [bridge.run(store.claim_logs.read_log(queue, partition, 1)) for partition in partitions],
            "covers": [sorted(bridge.run(store.covers.read_covers(queue, 1, COVERS)).values())],
        }
    shown: dict[str, Any] = plain(content)
    return shown


def _messages(store: Store, queue: Queue, partition: int) -> list[dict[str, Any]]:
    prompt = structs.replace(queue, read_delay=0.0)
    piece = Slice(partition=partition, limit=1000, max_bytes=1 << 24, due=False)
    return [structs.asdict(message) for batch in bridge.iterate(store.bulk.scan(prompt, piece)) for message in batch]


def plain(value: object) -> Any:  # noqa: ANN401 - any JSON value
    return msgspec.json.decode(msgspec.json.encode(value))
