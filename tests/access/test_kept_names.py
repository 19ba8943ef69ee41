"""Nothing is kept for ever of names that strangers write: of applications, queues, groups, keys, fields, headers."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from itertools import chain

import pytest

from queuey.app.service import App
from tests.tenants import GUEST_KEY
from tests.web.gateway_calls import KEY, Request, serve

REQUESTS, FORGOTTEN = 1_300, 200
"""Number of requests, each with a name of its own, and of the first ones of which nothing is left: the caches of names
and headers have at most 1,024 entries."""
MARK = "written-by-a-stranger"
FORM = re.compile(rf"{MARK}(\d{{5}})")
Make = Callable[[str], Request]


def ask(method: str, path: str, body: bytes = b"", *, key: str | None = KEY, query: str = "", header: str = "") -> Make:
    """Returns a function that makes a request, in which each ``*`` is a name."""

    def make(name: str) -> Request:
        own = [(header.replace("*", name), "1")] if header else []
        secret = key and key.replace("*", name)
        return Request(method, path.replace("*", name), body, headers=own, query=query.replace("*", name), key=secret)

    return make


BEAT = b'{"owned": {}}'
JOIN = b'{"queues": ["q"], "patterns": ["[*"], "session": 1}'
REQUESTED: dict[str, Make] = {
    "application": ask("GET", "/v1/*"),
    "queue": ask("GET", "/v1/queuey/*"),
    "key": ask("GET", "/v1/queuey/q", key="*"),
    "group": ask("GET", "/v1/queuey/_groups/*"),
    "member": ask("POST", "/v1/*/_groups/*/members/1-*", BEAT, key=GUEST_KEY),
    "member that leaves": ask("DELETE", "/v1/queuey/_groups/*/members/1-*"),
    "join": ask("POST", "/v1/queuey/_groups/*/members", JOIN),
    "offsets": ask("GET", "/v1/queuey/q/offsets/*"),
    "schedule": ask("GET", "/v1/queuey/_schedules/*"),
    "move": ask("GET", "/v1/queuey/_moves/*"),
    "named message": ask("GET", "/v1/queuey/q/named/*"),
    "path": ask("GET", "/*/*"),
    "field and header": ask("GET", "/v1/queuey/q", query="*=1", header="x-*"),
}


def find_kept() -> set[int]:
    """Returns the numbers of names of which a container in memory has a text, also as a part of a key."""
    kept: set[int] = set()
    for holder in gc.get_objects():
        # The collector knows no keys of dicts that are texts, and no tuples of texts.
        entries = [*dict.keys(holder), *dict.values(holder)] if isinstance(holder, dict) else gc.get_referents(holder)
        for entry in chain(entries, *(entry for entry in entries if isinstance(entry, tuple))):
            if isinstance(entry, str | bytes) and len(entry) < 1_000:
                kept.update(map(int, FORM.findall(entry if isinstance(entry, str) else entry.decode("latin-1"))))
    return kept


ALONE = ["key", "field and header"]
"""What has memories of its own. All others share the memory of paths."""
TOGETHER = [REQUESTED[kind] for kind in REQUESTED if kind not in ALONE]


@pytest.mark.parametrize("kinds", [TOGETHER, *([REQUESTED[kind]] for kind in ALONE)], ids=["path", *ALONE])
def test_names_are_forgotten(app: App, kinds: list[Make]) -> None:
    """Of the first of many requests, each with another name that does not exist, nothing is left in memory."""
    served = serve(app)
    served.reply_to(Request("POST", "/v1/queuey", b"queue_name=q"))
    requests = [kinds[number % len(kinds)](f"{MARK}{number:05}") for number in range(REQUESTS)]
    statuses = {served.reply_to(request).status for request in requests}
    requests.clear()
    assert statuses <= {200, 400, 401, 403, 404, 405, 409}
    gc.collect()
    assert min(find_kept(), default=REQUESTS) >= FORGOTTEN
