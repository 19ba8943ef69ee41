"""Changes by another process count immediately, also for requests that this process would have refused."""

from __future__ import annotations

import pytest

from queuey.storage import Store
from queuey.web import make_app
from queuey.web.parts import App
from tests.web.caller import Caller
from tests.web.conftest import KEY

ID = "0123456789ab11e88000000000000001"

pytestmark = pytest.mark.needs("processes")


@pytest.fixture
def elsewhere(app: App, other: Store) -> Caller:
    return Caller(make_app(other), f"Application {KEY}")


def create_and_post(owner: Caller, name: str, **fields: object) -> None:
    owner.create(name, **fields)
    owner.post(name, "x")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "q", "x", {"X-Partition": "3"}, 201),
        ("POST", "q", '{"messages":[{"body":"x","partition":3}]}', {"Content-Type": "application/json"}, 201),
        ("PUT", f"q/3:{ID}", "x", {}, 200),
        (
            "PUT",
            "q/offsets/g",
            '{"partitions":{"3":{"offset":"' + ID + '"}}}',
            {"Content-Type": "application/json"},
            200,
        ),
    ],
    ids=["post", "batch", "put", "offsets"],
)
def test_new_partitions_are_not_refused(
    owner: Caller, elsewhere: Caller, method: str, path: str, body: str, headers: dict[str, str], status: int
) -> None:
    """A partition that another process has just added can be used here."""
    create_and_post(owner, "q")
    assert elsewhere.send_form("PUT", "q", partitions=3).status == 200
    assert owner(method, path, body, headers=headers).status == status


def test_new_permissions_are_not_refused(owner: Caller, guest: Caller, elsewhere: Caller) -> None:
    """A caller that another process has just let in may come in here, and is refused when the right is revoked."""
    create_and_post(owner, "q")
    assert guest.get("q").status == 403
    elsewhere.send_form("PUT", "q", principals="app:guest")
    assert guest.get("q").bodies == ["x"]
    elsewhere.send_json("PUT", "q", {"principals": None})
    assert guest.get("q").status == 403


def test_fewer_partitions_after_a_new_start(owner: Caller, elsewhere: Caller) -> None:
    """A queue deleted and created again elsewhere, with fewer partitions, can be given more of them here."""
    create_and_post(owner, "q", partitions=5)
    elsewhere("DELETE", "q")
    elsewhere.create("q", partitions=1)
    assert owner.send_form("PUT", "q", partitions=2).json["partitions"] == 2


def test_bad_requests_stay_bad(owner: Caller, elsewhere: Caller) -> None:
    """What is wrong with the row as it is now stays refused, and nothing is stored."""
    create_and_post(owner, "q")
    elsewhere.send_form("PUT", "q", partitions=3)
    assert list(owner("POST", "q", "y", headers={"X-Partition": "4"}).errors) == ["partition"]
    assert list(owner("PUT", f"q/4:{ID}", "y").errors) == ["partition"]
    assert owner.get("q", partitions="*").bodies == ["x"]
