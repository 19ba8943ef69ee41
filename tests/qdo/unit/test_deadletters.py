"""The format of dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from queuey.client import Message, deadletters
from queuey.client.calls.send_calls import Outgoing, put
from queuey.client.deadletters import Cause
from tests.qdo.unit.samples import message

CAUSE = Cause(attempts=5, error="acme.errors.Late", text="50% zu spät\n", at=1_795_145_194.25)

texts = some.text(some.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
names = some.from_regex(r"[a-z0-9_!#$.^|~-]{1,12}", fullmatch=True) | some.just("queuey-dead-id")


def with_headers(one: Message, headers: Mapping[str, str], body: Any = None) -> Message:  # noqa: ANN401 - any body
    return Message(one.id, one.timestamp, one.partition, one.body if body is None else body, one.content_type, headers)


@settings(max_examples=max(10, settings().max_examples // 3))
@given(queue=texts, headers=some.dictionaries(names, texts, max_size=16))
def test_a_dead_letter_says_what_it_was(queue: str, headers: dict[str, str]) -> None:
    """Any queue name and headers pass through HTTP headers and are read back exactly."""
    original = message(7, body="text", headers=headers)
    for way in ("as they are", "packed"):
        written = deadletters.headers_for(queue, original, CAUSE, way)
        put("orders.dead", [original], Outgoing("text", headers=written))
        letter = deadletters.read_dead_letter(with_headers(original, written), "orders.dead")
        assert letter is not None
        assert (letter.queue, letter.partition, letter.id, letter.headers) == (queue, 1, original.id, headers)
        assert (letter.body, letter.json, letter.lost) == ("text", False, 0)
        assert letter.cause == CAUSE


def test_other_messages_are_no_dead_letters() -> None:
    """A message without the headers, or with broken ones, is skipped instead of misread."""
    plain = message(7)
    whole = deadletters.headers_for("orders", plain, CAUSE)
    assert deadletters.read_dead_letter(plain, "orders.dead") is None
    for name in ("queue", "partition", "id", "attempts", "error", "at"):
        broken = {key: text for key, text in whole.items() if key != f"queuey-dead-{name}"}
        assert deadletters.read_dead_letter(with_headers(plain, broken), "orders.dead") is None
    for name in ("partition", "attempts", "at"):
        assert (
            deadletters.read_dead_letter(with_headers(plain, whole | {f"queuey-dead-{name}": "x"}), "orders.dead")
            is None
        )
