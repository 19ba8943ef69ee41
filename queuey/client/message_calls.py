"""Calls about messages whose ids are known: get, get the raw bytes, delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queuey.client.errors import InvalidAnswer
from queuey.client.read_calls import messages_of
from queuey.client.results import Message, RawMessage, Receipt
from queuey.client.wire import Answer, Call, Place, id_text, nothing, place_text, queue_segment

IDS_PER_CALL = 200
"""Keeps the request line below the 8 KiB that proxies commonly take."""

_OWN_HEADER = "x-header-"


def get(queue: str, places: Iterable[Place]) -> Iterator[Call[list[Message]]]:
    """Fetches messages by id, missing ones left out; no call for no ids."""
    segment = queue_segment(queue)
    for part in _parts(places):
        yield Call("GET", f"{segment}/{part}", messages_of, repeatable=True)


def delete(queue: str, places: Iterable[Place]) -> Iterator[Call[None]]:
    """Deletes messages by id, whether or not they exist; no call for no ids."""
    segment = queue_segment(queue)
    for part in _parts(places):
        yield Call("DELETE", f"{segment}/{part}", nothing, repeatable=True)


def get_raw(queue: str, place: Place) -> Call[RawMessage]:
    """Fetches the bytes of one message."""
    path = f"{queue_segment(queue)}/{place_text(place)}"
    return Call("GET", path, _raw, params=(("raw", "true"),), repeatable=True)


def _parts(places: Iterable[Place]) -> Iterator[str]:
    texts = [place_text(place) for place in places]
    for start in range(0, len(texts), IDS_PER_CALL):
        yield ",".join(texts[start : start + IDS_PER_CALL])


def _raw(answer: Answer) -> RawMessage:
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


def several(places: Place | Iterable[Place]) -> list[Place]:
    """Returns a list of places, whether one was given or many. A pair of a number and an id is one place."""
    match places:
        case str() | Message() | Receipt():
            return [places]
        case (int(number), str(identifier)):
            return [(number, identifier)]
    return list(places)
