"""Names that people read show all that they are, wherever they are given."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from queuey.model.errors import InvalidRequest
from queuey.model.messages import is_readable
from queuey.model.rights import parse_scope
from queuey.storage import Store, bridge
from tests.web.caller import Caller, Reply

pytestmark = pytest.mark.one_app

UNREADABLE = {
    "an override of the direction": "a\u202eb",
    "a space without width": "a\u200bb",
    "a space that does not break": "a\xa0b",
    "a space at the end": "a ",
    "a space at the beginning": " a",
    "a separator of lines": "a\u2028b",
    "a separator of paragraphs": "a\u2029b",
    "no character": "a\ufffeb",
    "a mark of byte order": "\ufeffa",
    "a soft hyphen": "a\xadb",
    "a letter that is blank": "a\u3164b",
    "a blank pattern": "a\u2800b",
    "a tag": "a\U000e0041",
    "a character of private use": "a\ue000",
    "a line feed": "a\nb",
}
READABLE = ["a b", "ä日本", "Ж", "e\u0301", "50%", "👍", "שלום", "a.b-c:d@e"]

Give = Callable[[Caller, Store, str], Reply]


def give(method: str, path: str, **fields: object) -> Give:
    """Returns a function that sends JSON with a name in place of each ``NAME``."""

    def put(value: object, name: str) -> object:
        if isinstance(value, list):
            return [put(item, name) for item in value]
        return name if value == "NAME" else value

    def send(caller: Caller, _store: Store, name: str) -> Reply:
        content = {field: put(value, name) for field, value in fields.items()}
        return caller.send_json(method, path.replace("NAME", quote(name, safe="")), content)

    return send


REQUESTS: dict[str, Give] = {
    "a queue": give("POST", "", queue_name="NAME"),
    "a dead-letter queue": give("POST", "", queue_name="other", dead_letter="NAME"),
    "a changed dead-letter queue": give("PUT", "q", dead_letter="NAME"),
    "an instance": give("POST", "_groups/g/members", queues=["q"], instance="NAME"),
    "a member": give("POST", "_groups/g/members", queues=["q"], name="NAME"),
    "a member's queue": give("POST", "_groups/g/members", queues=["NAME"]),
    "a member's pattern": give("POST", "_groups/g/members", patterns=["NAME"]),
    "a worker": give("POST", "q/claims", worker="NAME"),
    "a worker of several queues": give("POST", "_claims", queues=["q"], worker="NAME"),
}
ASCII_REQUESTS: dict[str, Give] = {
    "a group": give("POST", "_groups/NAME/members", queues=["q"]),
    "a schedule": give("PUT", "_schedules/NAME", queue="q", message={"body": "x"}, every=60),
}


@pytest.fixture(autouse=True)
def queue(owner: Caller) -> str:
    return owner.create("q")


@pytest.mark.parametrize("place", [*REQUESTS, *ASCII_REQUESTS])
def test_unreadable_names(owner: Caller, store: Store, place: str) -> None:
    """A name of which people would not see everything is refused wherever a queue, group or worker gets its name."""
    for why, name in UNREADABLE.items():
        reply = (REQUESTS | ASCII_REQUESTS)[place](owner, store, name)
        assert (reply.status, len(reply.errors)) == (400, 1), (why, reply)


@pytest.mark.parametrize("name", READABLE)
def test_readable_names(owner: Caller, store: Store, name: str) -> None:
    """A name of any script that shows as it is can be given."""
    for place, give_name in REQUESTS.items():
        assert give_name(owner, store, name).status in {200, 201}, place


def test_unreadable_names_elsewhere(store: Store) -> None:
    """The same rule holds for applications, and for the notes and patterns of keys."""
    for why, name in UNREADABLE.items():
        assert not is_readable(name), why
        added = store.applications.add_key("queuey", b"x" * 32, note=name)
        for call in (store.applications.create_application(name), added):
            with pytest.raises(InvalidRequest, match="do not show"):
                bridge.run(call)
        if name == name.strip():  # The spaces around the patterns of a list do not count.
            with pytest.raises(ValueError, match="not a pattern"):
                parse_scope(["read"], [name])
