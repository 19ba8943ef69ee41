"""What a caller sees who has only the address."""

from __future__ import annotations

import pytest

import queuey
from queuey.errors import StoreUnavailable
from queuey.storage import Store, bridge
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
def test_hello(anonymous: Caller, store: Store, path: str) -> None:
    """Without a credential one learns what runs here, which store it serves, and where to go on."""
    content = anonymous.get(path).json
    assert {name: content[name] for name in ("name", "version", "store", "id")} == {
        "name": "queuey",
        "version": queuey.__version__,
        "store": "sqlite",
        "id": bridge.run(store.identity()),
    }
    for link in content["links"].values():
        assert "{" in link or anonymous.get(link).status == 200


def test_hello_asks_the_store_once(anonymous: Caller, between: InterposedStore) -> None:
    """While the store is down its name is unknown; once it is known, the service does not ask again."""

    def fail() -> str:
        raise StoreUnavailable("no answer")

    between.instead(Store.identity, fail)
    assert anonymous.get("/").status == 503
    between.instead(Store.identity, lambda: "0" * 32)
    assert [anonymous.get(path).json["id"] for path in ("/", "/v1/")] == ["0" * 32] * 2
    between.instead(Store.identity, fail)
    assert [anonymous.get(path).status for path in ("/", "/v1/")] == [200] * 2
