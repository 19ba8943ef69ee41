"""Calls about messages whose ids or names are known: get, get the raw bytes, delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queuey.api.reads import Explanation
from queuey.client.calls.call import (
    Call,
    HttpAnswer,
    MessageLocation,
    id_text,
    location_text,
    nothing,
    queue_segment,
    reads,
)
from queuey.client.calls.read_calls import messages_of
from queuey.client.calls.send_calls import named_path
from queuey.client.errors import InvalidAnswer
from queuey.client.results import Message, RawMessage, Receipt

IDS_PER_CALL = 200
"""Max ids in a request line, which stays below the 8 KiB that proxies commonly accept."""

_OWN_HEADER = "x-header-"


def get(queue: str, locations: Iterable[MessageLocation]) -> Iterator[Call[list[Message]]]:
    """Fetches messages by id, without missing ones; no call for no ids."""
    segment = queue_segment(queue)
    for part in _parts(locations):
        yield Call("GET", f"{segment}/{part}", messages_of, repeatable=True)


def delete(queue: str, locations: Iterable[MessageLocation]) -> Iterator[Call[None]]:
    """Deletes messages by id, whether or not they exist; no call for no ids."""
    segment = queue_segment(queue)
    for part in _parts(locations):
        yield Call("DELETE", f"{segment}/{part}", nothing, repeatable=True)


def get_raw(queue: str, location: MessageLocation) -> Call[RawMessage]:
    path = f"{queue_segment(queue)}/{location_text(location)}"
    return Call("GET", path, _raw, params=(("raw", "true"),), repeatable=True)


def explain(queue: str, location: MessageLocation) -> Call[Explanation]:
    """Asks why a message is not read or claimed. An id alone stands for the message in any partition."""
    place = id_text(location) if isinstance(location, str) and ":" not in location else location_text(location)
    path = f"{queue_segment(queue)}/explain/{place}"
    return Call("GET", path, reads(Explanation), repeatable=True)


def get_named(queue: str, name: str) -> Call[list[Message]]:
    return Call("GET", named_path(queue, name), messages_of, repeatable=True)


def delete_named(queue: str, name: str) -> Call[None]:
    return Call("DELETE", named_path(queue, name), nothing, repeatable=True)


def _parts(locations: Iterable[MessageLocation]) -> Iterator[str]:
    texts = [location_text(location) for location in locations]
    for start in range(0, len(texts), IDS_PER_CALL):
        yield ",".join(texts[start : start + IDS_PER_CALL])


def _raw(answer: HttpAnswer) -> RawMessage:
    headers = answer.headers
    try:
        return RawMessage(
            id=id_text(headers["x-message-id"]),
            timestamp=headers["x-timestamp"],
            partition=int(headers["x-partition"]),
            body=answer.content,
            content_type=headers.get("content-type", "application/octet-stream"),
            headers={
                name[len(_OWN_HEADER) :]: value for name, value in headers.items() if name.startswith(_OWN_HEADER)
            },
        )
    except (KeyError, ValueError) as error:
        raise InvalidAnswer(f"the answer lacks a usable header: {error}") from error


def several(locations: MessageLocation | Iterable[MessageLocation]) -> list[MessageLocation]:
    """Returns a list of locations, given one or several. A pair of a number and an id is one."""
    match locations:
        case str() | Message() | Receipt():
            return [locations]
        case (int(number), str(identifier)):
            return [(number, identifier)]
    return list(locations)
