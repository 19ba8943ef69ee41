"""Every argument is refused before anything is sent, or reaches exactly the resource that it names.

The arguments come from the signatures, so new methods and options are tested as well. What a server reads from the
request is compared with what it reads when the argument is an ordinary text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

import httpx2
import pytest

from queuey.client import (
    Client,
    ConsumerGroups,
    InvalidArgument,
    InvalidRequest,
    JobQueue,
    Moving,
    NamedMessages,
    Schedules,
)
from queuey.client.rqms import Queue
from tests.client.scripted import BlockingClient, Script, async_client, sync_client

ID, MOVE = "51783387e91e11f18080808080808080", "0123456789abcdef"
MARKERS = ("m4rker", ID, MOVE)
TEXTS = (
    "", ".", "..", "/", "?", "#", "%", "%2F", "%2e%2e", "../payroll", "messages", "_me", "a b", " a", "ü", "ключ", "\n",
    "\r\nX-A: b", "\0", "\ud800", "\\", '"', "1:", f"{ID},{ID}", f"{ID}/..", f"../{ID}",
)  # fmt: skip
ASYNC_MARKERS = ("", "..", "../payroll", "\ud800")
"""Wrappers of the async client, which makes the same calls."""
OBJECTS: dict[type, Callable[[Any], Any]] = {
    Client: lambda client: client,
    ConsumerGroups: lambda client: client.consumer_groups,
    JobQueue: lambda client: client.job_queue("usual"),
    Moving: lambda client: client.moving(MOVE),
    NamedMessages: lambda client: client.named("usual"),
    Schedules: lambda client: client.schedules,
}
"""Objects returned by a client whose methods send requests."""
FOLLOW_UP_CALLS = {"job_queue": "counts", "moving": "show", "named": lambda named: named.get("usual")}
"""How to send a request with an object returned by a method that sends none itself."""
USUAL: dict[str, Any] = {
    "claims": "usual",
    "cursors": {1: ID},
    "handle": print,
    "identifier": MOVE,
    "jobs": ID,
    "location": ID,
    "letters": ID,
    "locations": ID,
    "messages": ["usual"],
    "names": ["usual"],
    "number": 1,
    "offsets": {1: ID},
    "queries": ["usual"],
    "seen": ID,
    "states": [("usual", "x")],
}
"""Arguments that are not free texts."""
SHAPES: dict[str, Callable[[str], Any]] = {
    "cursors": lambda text: {1: text},
    "expected": lambda text: {1: text},
    "messages": lambda text: [text],
    "names": lambda text: [text],
    "offsets": lambda text: {1: text},
    "patterns": lambda text: [text],
    "queues": lambda text: [text],
    "queries": lambda text: [text],
    "results": lambda text: {"usual": text},
    "states": lambda text: [(text, "x")],
}
NOT_SENT = {
    "handle", "idle", "notice", "on_error", "page_size", "patience", "reason", "retry", "retry_delay", "told",
    "timeout", "batch",
}  # fmt: skip
"""Arguments that stay in this process, and texts for people, which are sent as far as possible."""
NOT_AT_FIRST = ("Client.tail: limit", "Client.tail: early", "Client.tail_pages: limit", "Client.tail_pages: early")
"""Arguments that are not in the first request, which asks where the queue ends. They are those of ``read``."""


def _arguments(method: Callable[..., Any]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yields the arguments and keyword options that are sent to the service, except flags."""
    hints = get_type_hints(method, include_extras=True)
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            for option, kind in get_type_hints(get_args(hints[name])[0]).items():
                if option not in NOT_SENT and kind is not bool:
                    yield option, parameter
        elif name not in {"self", *NOT_SENT} and hints[name] is not bool:
            yield name, parameter


def _make_call(kind: type, name: str, argument: str, parameter: inspect.Parameter) -> Callable[[Any, Any], Any]:
    """Returns a call of a method with a text for this argument and usual values for the required ones.

    It also uses the result, where only that sends a request.
    """
    method = getattr(kind, name)
    required = {
        each: USUAL.get(each, "usual")
        for each, given in inspect.signature(method).parameters.items()
        if each not in {"self", argument}
        and (given.default is inspect.Parameter.empty or each == "body")
        and given.kind in {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    }

    def call(client: Any, text: Any) -> None:  # noqa: ANN401 - either client
        value = SHAPES[argument](text) if argument in SHAPES else text
        bound = getattr(OBJECTS[kind](client), name)
        if argument == "json":
            required.pop("body", None)
        if name == "mark_read":
            result = bound(
                required.get("queue", value),
                *([value] if argument == "seen" else [ID] * (argument == "queue")),
                **({"cursor": value} if argument == "cursor" else {}),
            )
        else:
            result = bound(**required, **{argument: value})
        if name in FOLLOW_UP_CALLS:
            after = FOLLOW_UP_CALLS[name]
            after(result) if callable(after) else getattr(result, str(after))()
        elif hasattr(result, "__next__"):
            next(result, None)

    return call


CASES = {
    f"{kind.__name__}.{name}: {argument}": _make_call(kind, name, argument, parameter)
    for kind in OBJECTS
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and name != "open"  # which makes a client
    for argument, parameter in _arguments(method)
    if f"{kind.__name__}.{name}: {argument}" not in NOT_AT_FIRST
}


def read_request(request: httpx2.Request) -> dict[str, Any]:
    """Returns a request as a server reads it; a single message as a batch of one."""
    raw, _, query = request.url.raw_path.decode("ascii").partition("?")
    path = [unquote_to_bytes(part).decode() for part in raw.split("/")]
    shown = request.headers.items()
    headers = {name: value for name, value in shown if name.startswith("x-") or name == "last-event-id"}
    kind, key = request.headers.get("content-type"), request.headers.get("idempotency-key", "")
    if re.fullmatch(r'"[0-9a-f]{32}"', key) is None and key:
        headers["key of the send"] = re.sub(r"\\(.)", r"\1", key[1:-1])
    content: Any = request.content.decode()
    if content and (kind == "application/json" or "x-encoding" in headers):
        content = json.loads(content)
    elif kind is not None:
        headers["type"] = kind
    if request.method == "POST" and len(path) == 4 and not (isinstance(content, dict) and "messages" in content):
        own = {name[9:]: headers.pop(name) for name in list(headers) if name.startswith("x-header-")}
        item = {"body": content, "headers": own, "content_type": headers.pop("type", None)}
        item |= {name: headers.pop(f"x-{name.replace('_', '-')}", None) for name in ("message_key", "ttl", "partition")}
        content = {"messages": [{name: value for name, value in item.items() if value}]}
    return {
        "method": request.method,
        "path": path,
        "query": parse_qsl(query, keep_blank_values=True, errors="strict"),
        "headers": headers,
        "content": content,
    }


def _capture_request(call: Callable[[Any, Any], Any], text: Any, colour: str) -> dict[str, Any] | InvalidArgument:  # noqa: ANN401
    """Returns the request that the call sends, or the error if the client refused the text before sending."""
    script = Script(httpx2.Response(400, json={"status": "error", "error_msg": {}}))
    if colour == "rqms":
        client: Any = Queue("http://127.0.0.1:9/tasks", transport=httpx2.MockTransport(script))
    else:
        client = sync_client(script) if colour == "sync" else BlockingClient(async_client(script))
    try:
        call(client, text)
    except InvalidArgument as error:
        assert script.requests == []
        return error
    except InvalidRequest:
        pass
    finally:
        client.shut() if colour == "async" else client.close()
    return read_request(script.requests[0])


def replace_marker(value: Any, marker: str, text: str) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {replace_marker(name, marker, text): replace_marker(each, marker, text) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replace_marker(each, marker, text) for each in value)
    return value.replace(marker, text) if isinstance(value, str) else value


def _find_defects(name: str, call: Callable[[Any, Any], Any], colour: str) -> Iterator[str]:
    """Yields the defects of a call, in ASCII: errors, refusals without the argument, and requests without the text."""
    usual, marker, argument = {}, "", name.rpartition(": ")[2]
    for marker in MARKERS:
        actual = _capture_request(call, marker, colour)
        if isinstance(actual, dict) and marker in repr(actual):
            usual = actual
            break
    for text in ASYNC_MARKERS if colour == "async" else TEXTS:
        try:
            actual = _capture_request(call, text, colour)
        except Exception as error:  # noqa: BLE001 - of any kind
            yield ascii((text, error))
            continue
        if isinstance(actual, InvalidArgument):
            shown = argument, repr(text)[1:-1] or "''", *(repr(part) for part in text.split(":"))
            if not any(part in str(actual) for part in shown):
                yield ascii((text, actual))
        elif text and actual != (expected := replace_marker(usual, marker, text)):
            yield ascii((text, actual, expected))


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", dict.fromkeys(name.partition(".")[0] for name in CASES))
def test_every_argument(kind: str, colour: str) -> None:
    """Any text is refused with an error that names the argument, or arrives unchanged in its place."""
    names = [name for name in CASES if name.startswith(f"{kind}.")]
    assert [f"{name}: {defect}" for name in names for defect in _find_defects(name, CASES[name], colour)] == []


def test_names_of_tasks_of_rqms() -> None:
    """The id of a task is refused with an error that names it, or it arrives as it is."""
    assert list(_find_defects("jobid", lambda queue, text: queue.set(text, "usual"), "rqms")) == []


def test_all_that_sends_is_tried() -> None:
    """A client gives no object with calls of its own that the table lacks."""
    properties = (each.fget for each in vars(Client).values() if isinstance(each, property))
    methods = (method for name, method in inspect.getmembers(Client, inspect.isfunction) if name[0] != "_")
    returned = {get_type_hints(method).get("return") for method in (*methods, *properties)}
    sends = {kind for kind in returned if "sender" in getattr(getattr(kind, "__init__", None), "__annotations__", ())}
    assert sends == OBJECTS.keys() - {Client}


ADDRESSES: dict[str, Callable[[str], tuple[Any, list[str]]]] = {
    "application": lambda text: ({"url": "http://127.0.0.1:9", "application": text}, ["", "v1", text]),
    "application in the url": lambda text: ({"url": f"http://127.0.0.1:9/v1/{text}/"}, ["", "v1", unquote(text)]),
    "url": lambda text: (
        {"url": f"http://127.0.0.1:9/{text}", "application": "acme"},
        ["", *([unquote(text.strip())] if text.strip("/\n") else []), "v1", "acme"],
    ),
    "whole url": lambda text: ({"url": text, "application": "acme"}, []),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses(name: str) -> None:
    """Addresses are refused when the client is made, or lead to the application that they name."""
    for text in TEXTS:
        options, path = ADDRESSES[name](text)
        script = Script(httpx2.Response(400, json={"status": "error", "error_msg": {}}))
        try:
            client = Client(**options, key="key", transport=httpx2.MockTransport(script))
        except InvalidArgument:
            continue
        with client, pytest.raises(InvalidRequest):
            client.info("usual")
        assert read_request(script.requests[0])["path"] == [*path, "usual", "info"], ascii(text)
