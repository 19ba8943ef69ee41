"""How often a change in doubt is sent to nodes that do not say what became of it."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from queuey.errors import StoreUnavailable
from queuey.messages import PostKey
from queuey.storage.cassandra.driver import Done, Encoded, InDoubt, Request
from tests.backends import APP, SimulatedLocation
from tests.contract.samples import make_queue, new


@pytest.mark.xfail(
    strict=True, reason="A change in doubt is sent again at once (D-3): mended with Cassandra on the loop"
)
def test_keyed_posts_pause_while_a_node_is_ill() -> None:
    """Between two attempts at a change in doubt there is a pause: an ill node does not get five in a millisecond."""
    opened: Any = SimulatedLocation().open()
    with closing(opened) as store:
        store.create_application(APP)
        queue = make_queue(store)
        driver = store._driver
        real, sent = driver.send, list[float]()

        def send(request: Request | Encoded, done: Done) -> None:
            if isinstance(request, Request) and request.serial is not None and not request.statement.reads:
                sent.append(time.monotonic())
                done(None, InDoubt("the node does not say"))
            else:
                real(request, done)

        driver.send = send
        with pytest.raises(StoreUnavailable, match="in doubt"):
            store.append_once(queue, [new("a")], PostKey("key", b"content", 60))
    assert len(sent) > 1
    assert all(later - before > 0.005 for before, later in pairwise(sent))
