"""Facades while the service is killed: fetched messages stay with their reader, and stored ones are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queuey.storage import Store, bridge, cassandra, sqlite
from tests.acceptance.facades.calls import Facade, write_settings_file
from tests.acceptance.facades.conftest import LONG_REDELIVERY
from tests.acceptance.facades.test_mq import MAX_MESSAGE_BYTES, fetch_until, id_of, post
from tests.acceptance.facades.test_rqms import add, fetch, fetch_some, finish
from tests.servers import keyspaces
from tests.servers.served import Served, free_port


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("cassandra", marks=pytest.mark.slow)])
def test_killed(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """After kill -9 claims, locks and tickets are valid; messages are there once, and of a name the newest."""
    store: Store
    if kind == "cassandra":
        url = keyspaces.make(request.getfixturevalue("cassandra"))
        options = [
            *write_settings_file(tmp_path, LONG_REDELIVERY.replace("3600", "3600\nunsynced = true")),
            "--store",
            url,
        ]
        store = cassandra.open_store(url)
    else:
        options = write_settings_file(tmp_path, LONG_REDELIVERY)
        store = sqlite.open_store(tmp_path / "data")
    bridge.run(store.applications.create_application("queuey"))
    store.close()
    port = free_port()
    mq, rqms = Facade(port, "/mq"), Facade(port, "/rqms")
    bodies = [b"", bytes(range(256)), b"x" * MAX_MESSAGE_BYTES]
    with Served(tmp_path, options, port=port):
        names = [post(mq, "jobs", body) for body in bodies]
        first = fetch_until(mq, "jobs", 200)
        assert (first.body, id_of(first)) == (bodies[0], names[0])
        assert [add(rqms, "items", name).status for name in "abc"] == [201] * 3
        [locked] = fetch_some(rqms, "items")
        assert rqms.call("PUT", "/items/b", b"2").status == 201
    with Served(tmp_path, options, port=port):
        fetched = [fetch_until(mq, "jobs", 200) for _ in bodies[1:]]
        assert [(reply.body, id_of(reply)) for reply in fetched] == list(zip(bodies[1:], names[1:], strict=True))
        assert mq.call("GET", "/jobs/messages").status == 204
        assert [mq.call("DELETE", f"/jobs/messages/{name}").status for name in names] == [202] * 3
        assert add(rqms, "items", "c").status == 201
        items = [item for _ in range(2) for item in fetch_some(rqms, "items")]
        assert {(json.loads(item["ticket"])[0], item["value"]) for item in items} == {("b", 2), ("c", 1)}
        assert fetch(rqms, "items") == []
        assert [finish(rqms, "items", item).status for item in (locked, *items)] == [200] * 3
        assert finish(rqms, "items", locked).status == 409
