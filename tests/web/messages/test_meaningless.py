"""What means nothing in a request is said, and a request that is malformed costs no read of its queue."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.storage import Store
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller

Case = tuple[str, str, Any, dict[str, str]]
CLAIMS_BY_BODY: Case = ("POST", "q/claims", {"limit": 5, "ttl": 60}, {})
MISSPELT: Case = ("POST", "", {"queue_name": "x", "partitons": 4}, {})
MISSPELT_IN_A_BATCH: Case = ("POST", "q", {"messages": [{"body": "x", "tll": 60}]}, {})
MISSPELT_HEADER = ("POST", "q", None, {"X_TLL": "60"})
HEADER_OF_ANOTHER_OPERATION = ("POST", "q/claims", None, {"X_Delay": "60"})
CASES = [CLAIMS_BY_BODY, MISSPELT, MISSPELT_IN_A_BATCH, MISSPELT_HEADER, HEADER_OF_ANOTHER_OPERATION]
NAMES = ["claims by body", "misspelt", "misspelt in a batch", "misspelt header", "header of another operation"]


def ask(owner: Caller, case: tuple[str, str, Any, dict[str, str]], **query: object) -> Any:  # noqa: ANN401 - a reply
    """Sends a request of the table."""
    method, path, content, headers = case
    if content is None:
        return owner(
            method, path, b"x" * (path == "q"), headers={k.replace("_", "-"): v for k, v in headers.items()}, **query
        )
    asked = f"{path}?strict=1" if query else path
    return owner.send_json(method, asked, content, **headers)


@pytest.mark.xfail(strict=True, reason="Bodies and headers are not looked through yet (C-9)")
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_fields_and_headers_that_mean_nothing(owner: Caller, case: tuple[str, str, Any, dict[str, str]]) -> None:
    """The answer warns of them, and with ``strict=1`` refuses them."""
    owner.create("q")
    assert "Warning" in ask(owner, case).headers
    assert ask(owner, case, strict=1).status == 400


@pytest.mark.xfail(strict=True, reason='"Malformed" and "does not fit this row" are one error yet (C-6)')
def test_a_malformed_body_costs_no_read_of_its_queue(owner: Caller, between: InterposedStore) -> None:
    """What no row of a queue could make right is refused by what is known of the queue."""
    owner.create("q")
    owner.post("q", "x")
    reads: list[str] = []
    between.before(Store.queue, lambda: reads.append("q"))
    assert owner.send_json("POST", "q", {"messages": [{"body": 5, "ttl": "never"}]}).status == 400
    assert not reads
