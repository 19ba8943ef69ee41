"""A service inside the program: its client's calls, its start and its end."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest

from qdo import Jobs
from queuey import embedded
from queuey.api.groups import Heartbeat
from queuey.app import opening
from queuey.client import (
    AsyncClient,
    Client,
    InvalidArgument,
    Outgoing,
    QueueNotFound,
    RetryPolicy,
    ServiceUnavailable,
    TooLarge,
)
from queuey.client.http.servers import opener
from queuey.embedded.exchange import MAX_UNREAD
from queuey.embedded.pools import InProcessPool
from queuey.embedded.service import EmbeddedService
from queuey.model import ids
from queuey.model.errors import StoreClosed
from queuey.settings import load
from queuey.storage import bridge, sqlite
from tests.replacing import replace_in
from tests.web.gateway_calls import TEST_TIMEOUT, held_quotas

QUICK = {"sync": "normal"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def client(file: Path) -> Iterator[Client]:
    """A client of an embedded service with the queue ``mails``."""
    with embedded.open(file, settings=QUICK) as client:
        client.create_queue("mails")
        yield client


def test_a_group_of_the_program(client: Client) -> None:
    """Members of one program are the same caller, the application, and divide partitions without a key."""
    first, second = (client.consumer_groups.join("workers", ["mails"], session=3) for _ in range(2))
    assert first.heartbeat(Heartbeat(wait=1)).take["mails"].keys() == {1}
    assert second.heartbeat().take == {}
    first.leave()
    assert second.heartbeat(Heartbeat(wait=1)).take["mails"].keys() == {1}
    second.leave()


def service_of(client: Client) -> EmbeddedService:
    pool = client._sender._connections.endpoint_of(client.servers[0]).pool
    assert isinstance(pool, InProcessPool)
    return pool.service


def once(client: Client, timeout: float = 10) -> Client:
    """Returns a client of the same service that sends each call once."""
    pool: Any = InProcessPool(service_of(client), "queuey")
    return Client(embedded.URL, key="", timeout=timeout, retry=RetryPolicy(deadline=0), transport=pool)


def test_a_message_stays_when_the_service_has_ended(file: Path) -> None:
    """The file has what was acknowledged, belongs to its user alone, and serves a data directory's client as well."""
    with embedded.open(file, application="shop") as client:
        client.create_queue("mails")
        client.send("mails", "hello")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with embedded.open(str(file), application="shop") as client:
        assert [message.body for message in client.read_all("mails", since=0)] == ["hello"]
    with embedded.open(file) as client, pytest.raises(QueueNotFound):
        client.send("mails", "to the queue of another application")


async def test_the_client_opens_a_store_itself(file: Path) -> None:
    """Sync and async clients open it like this package, and say what is missing where only the client is installed."""
    with Client.open(file, application="shop", settings=QUICK) as client:
        client.create_queue("mails")
        async with AsyncClient.open(file, application="shop", settings=QUICK) as other:
            assert (await other.send("mails", "hello")).partition == 1
    for kind in (Client, AsyncClient):
        assert inspect.signature(kind.open).parameters.keys() == inspect.signature(embedded.open).parameters.keys()
    with pytest.raises(InvalidArgument, match=r"'open_nothing' of 'queuey.embedded'.*Install queuey-store again"):
        opener("open_nothing")


def test_refusals_are_those_of_the_service(client: Client, tmp_path: Path) -> None:
    """What the service refuses comes as the same error as over HTTP, by the limits in force."""
    with pytest.raises(QueueNotFound, match="queuey queue create nothing"):
        client.send("nothing", "x")
    with embedded.open(tmp_path / "small.db", settings={"max_body": "100"}) as small:
        small.create_queue("mails")
        with pytest.raises(TooLarge):
            small.send("mails", "x" * 101)


def test_a_claim_waits_for_a_message(client: Client) -> None:
    """A long poll blocks the caller until a message comes, and a task runs it."""
    jobs, done = Jobs("mails", client=client), []

    @jobs.task
    def note(text: str) -> None:
        done.append(text)

    later = threading.Timer(0.1, note.send, ("x",))
    later.start()
    job = next(iter(client.job_queue("mails").claim(idle=60)))
    job.release()
    assert jobs.run_all() == 1
    assert done == ["x"]


async def test_a_stream_that_is_left_holds_nothing(file: Path) -> None:
    """A stream waits for its reader, and ends with it."""
    with embedded.open(file, settings=QUICK) as writer:
        writer.create_queue("mails")
        writer.send_many("mails", [Outgoing("x" * 100_000) for _ in range(4 * MAX_UNREAD // 100_000)])
    async with embedded.open_async(file, settings=QUICK) as client:
        service = client._sender._connections.endpoint_of(client.servers[0]).pool.service
        service.gateway._sender._stall = TEST_TIMEOUT  # The call is not abandoned for being slow.
        async with asyncio.timeout(60):
            events = client.stream("mails", since=0)
            assert len((await anext(events)).message.body) == 100_000
            await events.aclose()  # type: ignore[attr-defined] # it is a generator
            while held_quotas(service.gateway):  # noqa: ASYNC110 - the condition is over everything that runs there
                await asyncio.sleep(0.01)
        await client.send("mails", "the service goes on")


def test_closing_ends_what_waits(file: Path) -> None:
    """A caller that waits gets its answer when another thread closes the client; then calls are refused."""
    client = embedded.open(file, settings={**QUICK, "max_wait": "300"})
    client.create_queue("mails")
    jobs: list[object] = []

    def wait() -> None:
        jobs.extend(client.job_queue("mails").receive(wait=300))

    waiting = threading.Thread(target=wait)
    waiting.start()
    service = service_of(client)
    end = time.monotonic() + 60
    while not service.service.reader.watchers.count(for_all=False) and time.monotonic() < end:
        time.sleep(0.01)
    began = time.monotonic()
    client.close()
    waiting.join(TEST_TIMEOUT)
    assert time.monotonic() - began < 200
    assert jobs == []
    assert not service.thread.is_alive()
    with pytest.raises(InvalidArgument, match="closed"):
        client.send("mails", "x")


def test_a_close_that_was_interrupted_is_repeated(client: Client) -> None:
    """Ctrl-C in a close leaves neither a thread nor the file open once the client is closed again, or at exit."""
    service = service_of(client)
    thread = service.thread

    class Interrupted:
        @staticmethod
        def join() -> None:
            service.thread = thread
            raise KeyboardInterrupt

    service.thread = Interrupted()  # type: ignore[assignment] # it stands in for it
    with pytest.raises(KeyboardInterrupt):
        service.close()
    service.close()
    assert not thread.is_alive()
    with pytest.raises(StoreClosed):
        bridge.run(service.service.store.applications.create_application("late"))


def test_what_came_due_while_no_program_ran(file: Path) -> None:
    """The next program that opens the file fires missed schedules, and removes what has expired."""
    options = sqlite.SqliteOptions(sync="normal", clock=lambda: ids.now_ticks() - 3600 * ids.TICKS_PER_SECOND)
    store = sqlite.open_store(file, options=options)
    bridge.run(store.applications.create_application("queuey"))
    pool: Any = InProcessPool(EmbeddedService(store, load({"data": str(file)}, {}).settings), "queuey")
    with Client(embedded.URL, key="", transport=pool) as an_hour_ago:
        an_hour_ago.create_queue("mails")
        an_hour_ago.send("mails", "short", ttl=60)
        an_hour_ago.schedules.put("poll", queue="mails", message="tick", every=600, missed="catch_up")
    assert rows_of(file) == 1
    with embedded.open(file, settings=QUICK) as client:
        ticks = islice(client.job_queue("mails").claim(idle=60), 6)
        assert [job.body for job in ticks] == ["tick"] * 6
        end = time.monotonic() + 60
        while rows_of(file) > 6 and time.monotonic() < end:
            time.sleep(0.05)
        assert rows_of(file) == 6


def rows_of(file: Path) -> int:
    """Returns how many messages a file contains, expired ones too."""
    with closing(apsw.Connection(str(file))) as connection:  # Use the store's copy of SQLite, so that locks stay.
        rows: Any = connection.execute("SELECT count(*) FROM messages").fetchall()
    return int(rows[0][0])


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    """An error says what is wrong with the path."""
    text = tmp_path / "text.db"
    text.write_text("no database, and long enough for SQLite to see that it is none" * 10)
    with pytest.raises(ServiceUnavailable, match="not a database"):
        embedded.open(text)
    with pytest.raises(ServiceUnavailable, match="cannot be used"):
        embedded.open(text / "below" / "jobs.db")
    with pytest.raises(ServiceUnavailable, match="name too long"):
        embedded.open(tmp_path / f"{'x' * 300}.db")
    with pytest.raises(InvalidArgument, match="sync"):
        embedded.open(tmp_path / "jobs.db", settings={"sync": "sometimes"})
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o777)
    with pytest.raises(InvalidArgument, match="chmod o-w"):
        embedded.open(common / "jobs.db")
    common.chmod(0o1777)
    embedded.open(common / "jobs.db", settings=QUICK).close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_files_of_another_user(file: Path, suffix: str) -> None:
    """A file that another user has made is not opened, nor one beside which another user has put SQLite's files."""
    planted = file.with_name(file.name + suffix)
    planted.touch()
    user = os.geteuid()
    if user == 0:
        os.chown(planted, 4711, -1)
    else:  # Then all files are those of another user.
        planted, user = file, 4711
    refusal = re.escape(f"{planted} belongs to another user")
    with replace_in(os, os.geteuid, lambda: user), pytest.raises(ServiceUnavailable, match=refusal):
        embedded.open(file)


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640])
def test_files_that_others_may_use(file: Path, mode: int) -> None:
    """A store whose files others may use is opened, and belongs to its user alone from then on."""
    with embedded.open(file, settings=QUICK) as client:
        client.create_queue("mails")
        side_files = [path for path in file.parent.iterdir() if path.name.startswith(f"{file.name}-")]
        for path in (file, *side_files):
            path.chmod(mode)
        with embedded.open(file, settings=QUICK) as other:
            assert list(other.queue_names()) == ["mails"]
            modes = {path.name[len(file.name) :]: stat.S_IMODE(path.stat().st_mode) for path in (file, *side_files)}
            assert modes == {"": 0o600, "-wal": 0o600, "-shm": 0o600}


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_links(tmp_path: Path, mode: int) -> None:
    """A link leads to a store, except where all users may make links."""
    target, directory = tmp_path / "jobs.db", tmp_path / "common"
    directory.mkdir()
    directory.chmod(mode)
    link = directory / "link.db"
    link.symlink_to(target)
    if mode & stat.S_IWOTH:
        with pytest.raises(ServiceUnavailable, match="is a link in a directory to which all users may write"):
            embedded.open(link)
        assert not target.exists()
    else:
        embedded.open(target, settings=QUICK).close()
        with embedded.open(link, settings=QUICK) as client:
            client.create_queue("mails")
        with embedded.open(target, settings=QUICK) as client:
            assert list(client.queue_names()) == ["mails"]


def test_a_directory_of_another_user(tmp_path: Path) -> None:
    """In a directory that all may write to, a file is safe from all but the directory's owner."""
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o1777)
    user = os.geteuid()
    if user == 0:
        os.chown(common, 4711, -1)
    else:
        user = 4711
    with replace_in(os, os.geteuid, lambda: user), pytest.raises(InvalidArgument, match="could replace the store"):
        embedded.open(common / "jobs.db")


@pytest.mark.parametrize(
    ("store", "settings", "said"),
    [
        ("http://127.0.0.1:5000", {}, "give a path, or cassandra://host1,host2/keyspace"),
        ("cassandra:///keyspace", {}, "not a valid host"),
        ("", {}, "empty"),
        ("jobs.db", {"data": "others.db"}, "settings has 'data'"),
        ("jobs.db", {"syn": "normal"}, r"settings\['syn'\]; did you mean sync"),
    ],
)
def test_what_names_no_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, settings: dict[str, str], said: str
) -> None:
    """A mistake is an error, not a new store somewhere else."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=said):
        embedded.open(store, settings=settings)
    assert not list(tmp_path.iterdir())


def test_a_full_disk(file: Path) -> None:
    """Opening and sending report the error; stored messages stay."""

    def limited(pages: int) -> AbstractContextManager[None]:
        options = sqlite.SqliteOptions(sync="normal", pragmas=(f"PRAGMA max_page_count = {pages}",))
        return replace_in(opening, opening.sqlite_options, lambda _settings, *, jobs: options)

    with limited(20), pytest.raises(ServiceUnavailable, match="no space left") as refused:
        embedded.open(file)
    assert refused.value.code == "StoreFull"
    with limited(100), embedded.open(file) as client:
        client.create_queue("mails")
        sending = once(client)

        def fill() -> None:
            for number in range(500):
                sending.send("mails", f"{number}" + "x" * 5000)

        with pytest.raises(ServiceUnavailable) as refused:
            fill()
        assert (refused.value.code, refused.value.outcome) == ("StoreFull", "none")
        stored = [message.body for message in client.read_all("mails", since=0)]
        assert [int(body.rstrip("x")) for body in stored] == list(range(len(stored)))
        assert stored


def test_a_file_that_sqlite3_has_open_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When that closes the file, the kernel drops all locks of this process on it."""
    embedded.open(file, settings=QUICK).close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("SELECT name FROM sqlite_master").fetchall()
        with pytest.raises(InvalidArgument, match="sqlite3"):
            embedded.open(file)
    monkeypatch.chdir(file.parent)
    with embedded.open(file, settings=QUICK) as first, embedded.open(file.name, settings=QUICK) as second:
        first.create_queue("mails")
        second.send("mails", "to a store that is open twice")


def test_threads_share_a_client(client: Client) -> None:
    """Calls of several threads are answered side by side, each with its own answer."""

    def send(thread: int) -> None:
        for number in range(20):
            client.send("mails", f"{thread} {number}", key=f"{thread}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TEST_TIMEOUT)
    bodies = {message.body for message in client.read_all("mails", since=0)}
    assert bodies == {f"{thread} {number}" for thread in range(8) for number in range(20)}
