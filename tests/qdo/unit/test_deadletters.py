"""The format of dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from queuey.client import Message, deadletters
from queuey.client.calls.send_calls import Outgoing, put
from queuey.client.deadletters import Cause
from tests.qdo.unit.worker.dead_letter_samples import message

CAUSE = Cause(attempts=5, error="acme.errors.Late", text="50% zu spät\n", at=1_795_145_194.25)

texts = some.text(some.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
names = some.from_regex(r"[a-z0-9_!#$.^|~-]{1,12}", fullmatch=True) | some.just("queuey-dead-id")


def lying(one: Message, headers: Mapping[str, str], body: Any = None) -> Message:  # noqa: ANN401 - any body
    """What would be read of a dead letter with these headers."""
    return Message(one.id, one.timestamp, one.partition, one.body if body is None else body, one.content_type, headers)


@given(queue=texts, headers=some.dictionaries(names, texts, max_size=16))
def test_a_dead_letter_says_what_it_was(queue: str, headers: dict[str, str]) -> None:
    """Whatever queue and headers there were, HTTP can carry them, and reading gives them back exactly."""
    one = message(7, headers=headers)
    for way in ("as they are", "packed"):
        written = deadletters.headers_for(queue, one, CAUSE, way)
        put("orders.dead", [one], Outgoing("text", headers=written))
        found = deadletters.read_dead_letter(lying(one, written), "orders.dead")
        assert found is not None
        assert (found.queue, found.partition, found.id, found.headers) == (queue, 1, one.id, headers)
        assert (found.body, found.json, found.lost) == ("text", False, 0)
        assert found.cause == CAUSE


def test_an_error_without_end_is_cut() -> None:
    """Text and class of an error come from programs, so neither may make the letter too large to be stored."""
    cause = Cause(attempts=1, error="X", text="é" * 10_000, at=0)
    written = deadletters.headers_for("orders", message(7), cause)
    assert sum(len(name) + len(text) for name, text in written.items()) < 8192


def test_other_messages_are_no_dead_letters() -> None:
    """A message without the headers, or with broken ones, is passed over instead of being misread."""
    one = message(7)
    whole = deadletters.headers_for("orders", one, CAUSE)
    assert deadletters.read_dead_letter(one, "orders.dead") is None
    for name in ("queue", "partition", "id", "attempts", "error", "at"):
        broken = {key: text for key, text in whole.items() if key != f"queuey-dead-{name}"}
        assert deadletters.read_dead_letter(lying(one, broken), "orders.dead") is None
    for name in ("partition", "attempts", "at"):
        assert deadletters.read_dead_letter(lying(one, whole | {f"queuey-dead-{name}": "x"}), "orders.dead") is None


def test_where_dead_letters_lie() -> None:
    """Beside their queue, or where the settings say; either kind of place is known as one."""
    assert deadletters.queue_for("orders") == "orders.dead"
    assert deadletters.queue_for("orders", "crypt") == "crypt"
    assert deadletters.holds_dead("orders.dead")
    assert deadletters.holds_dead("crypt", "crypt")
    assert not deadletters.holds_dead("crypt")
