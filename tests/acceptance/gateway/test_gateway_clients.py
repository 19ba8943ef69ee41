"""Another process on the same data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuey.storage import Store, bridge
from queuey.storage.sqlite import open_store
from queuey.web.credentials import digest_of
from tests.acceptance.wire import Wire, post
from tests.servers.served import Served
from tests.waiting import until


@pytest.fixture
def elsewhere(served: Served) -> Iterator[Store]:
    """The same data in another process: this one."""
    store = open_store(served.data)
    yield store
    store.close()


def test_key_revoked_while_posting(served: Served, elsewhere: Store, queue: str) -> None:
    """A key revoked by another process ends, although it is used all the time."""
    secret = "b" * 64
    key = bridge.run(elsewhere.applications.add_key("queuey", digest_of(secret)))
    with Wire(served) as wire:
        wire.key = secret
        ask = (post(queue), b"x", "Content-Length: 1")
        assert wire.ask(*ask).status == 201
        bridge.run(elsewhere.applications.revoke_key("queuey", key.id))
        until(lambda: wire.ask(*ask).status == 401)
        assert wire.is_usable()
