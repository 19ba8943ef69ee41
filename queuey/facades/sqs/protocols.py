"""The two protocols of SQS: AWS JSON 1.0, and Query with forms and XML. Both are parsed to the names of AWS JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from queuey.facades.sqs.errors import THROTTLED, UNAVAILABLE, SqsError
from queuey.model.errors import InvalidRequest
from queuey.web.requests import Request
from queuey.web.responses import Header, Response, encode
from queuey.web.validators import read_object

T = TypeVar("T")

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
JSON_TYPE: Header = ("Content-Type", "application/x-amz-json-1.0")
XML_TYPE: Header = ("Content-Type", "text/xml")
TARGET_PREFIX = "AmazonSQS."
MAX_FIELDS = 2000
"""Max fields of a form. A batch of ten messages with ten attributes each has about 450."""
MAX_DEPTH = 8
_REQUEST_ID_HEADER = "x-amzn-requestid"

_LIST_NAMES = {
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
    "TagKey": "TagKeys",
}
"""Names of numbered fields in a form, and of the lists that AWS JSON has instead."""
_MAP_NAMES = {
    "Attribute": ("Attributes", "Name"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
    "Tag": ("Tags", "Key"),
}
"""Names of numbered pairs in a form, the maps that AWS JSON has instead, and the part of a pair that is the key."""
_ELEMENT_NAMES = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "Result",
}
_PAIR_NAMES = {list_name: (one, key) for one, (list_name, key) in _MAP_NAMES.items()}
_EMPTY_FIELD_NAMES = (
    _LIST_NAMES
    | {one: many for one, (many, _) in _MAP_NAMES.items()}
    | {name: name for name in (*_LIST_NAMES.values(), *_PAIR_NAMES)}
)
"""Names of fields that a client sends without a value for an empty list or map, and their names in AWS JSON."""
_ACTIONS_WITHOUT_RESULT = frozenset(
    {
        "AddPermission",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "DeleteQueue",
        "PurgeQueue",
        "RemovePermission",
        "SetQueueAttributes",
        "TagQueue",
        "UntagQueue",
    }
)
"""Actions whose answers have no result element. All other answers have one, even if it is empty."""
_NUMBER = re.compile("[0-9]{1,9}")
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that XML 1.0 does not allow. SQS does not allow it in messages either."""


class ActionCall(NamedTuple):
    """Action and parameters of a request.

    Attributes:
        action: Name of the action.
        parameters: Parameters by their names in AWS JSON.
    """

    action: str
    parameters: dict[str, Any]


def is_json(request: Request) -> bool:
    return "x-amz-target" in request.headers


def read_call(request: Request, body: bytes) -> ActionCall:
    """Parses a request of either protocol; a form's fields may be in query and body, which has precedence.

    Does not check whether the action exists; a form without one has a blank action. A field that is
    given twice in one of them is refused, because the signature does not show which value applies.

    Raises:
        SqsError: The request is malformed.
    """
    if is_json(request):
        target = request.headers["x-amz-target"]
        if not target.startswith(TARGET_PREFIX):
            raise SqsError("InvalidAction", f"X-Amz-Target is {target[:100]}, and not {TARGET_PREFIX}<action>.")
        try:
            content = read_object(body or b"{}")
        except InvalidRequest as error:
            raise SqsError("SerializationException", str(error)) from None
        if "tags" in content:
            content["Tags"] = content.pop("tags")
        return ActionCall(target.removeprefix(TARGET_PREFIX), content)
    fields = _read_form(request.query) | _read_form(body.decode("latin-1"))
    action = fields.pop("Action", "")
    return ActionCall(action, _nest(fields))


def _read_form(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        text = f"The request is not a form in UTF-8 with at most {MAX_FIELDS} fields."
        raise SqsError("MalformedQueryString", text) from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        # The signature does not cover the order of fields, so it would not tell which one applies.
        raise SqsError("MalformedQueryString", "A field is given twice.")
    return fields


def _nest(fields: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        *path, last = name.split(".", MAX_DEPTH)
        place = tree
        for step in path:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise SqsError("MalformedQueryString", f"{name[:100]} conflicts with a field above it.")
        if isinstance(place.get(last), dict):
            raise SqsError("MalformedQueryString", f"{name[:100]} conflicts with fields that are parts of it.")
        place[last] = value
    return _join_numbered(tree)


def _join_numbered(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Turns numbered fields into the lists and maps that AWS JSON has, at every depth.

    A blank field that stands for a list or map becomes an empty one. If pairs have the same key, the last one counts.
    """
    joined: dict[str, Any] = {}
    for name, value in tree.items():
        if value == "" and name in _EMPTY_FIELD_NAMES:
            joined[_EMPTY_FIELD_NAMES[name]] = {} if _EMPTY_FIELD_NAMES[name] in _PAIR_NAMES else []
        elif name in _LIST_NAMES:
            joined[_LIST_NAMES[name]] = [
                _join_numbered(item) if isinstance(item, dict) else item for item in _list_numbered(name, value)
            ]
        elif name in _MAP_NAMES:
            many, key = _MAP_NAMES[name]
            joined[many] = {}
            for item in _list_numbered(name, value):
                if not isinstance(item, dict) or not isinstance(item.get(key), str):
                    raise SqsError("MissingParameter", f"{name} has no {key}.")
                content = item.get("Value", "")
                joined[many][item[key]] = _join_numbered(content) if isinstance(content, dict) else content
        else:
            joined[name] = _join_numbered(value) if isinstance(value, dict) else value
    return joined


def _list_numbered(name: str, value: object) -> list[Any]:
    if not isinstance(value, dict) or not all(map(_NUMBER.fullmatch, value)):
        raise SqsError("MalformedQueryString", f"The fields {name} are not numbered. Send {name}.1 and so on.")
    return [value[number] for number in sorted(value, key=int)]


def make_answer(request: Request, action: str, result: Mapping[str, Any], request_id: str) -> Response:
    id_header: Header = (_REQUEST_ID_HEADER, request_id)
    if is_json(request):
        return Response(200, encode(result), JSON_TYPE, id_header)
    inside = _render_value(action, result)
    wrapped = "" if action in _ACTIONS_WITHOUT_RESULT else f"<{action}Result>{inside}</{action}Result>"
    text = (
        f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{wrapped}<ResponseMetadata>'
        f"<RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
    )
    return Response(200, text.encode(), XML_TYPE, id_header)


def make_error_answer(request: Request, error: SqsError, request_id: str) -> Response:
    fault = "Sender" if error.is_sender_fault else "Receiver"
    id_header: Header = (_REQUEST_ID_HEADER, request_id)
    pause: tuple[Header, ...] = (("Retry-After", "1"),) if error.name in {THROTTLED, UNAVAILABLE} else ()
    if is_json(request):
        content = {"__type": f"com.amazonaws.sqs#{error.name}", "message": str(error)}
        code: Header = ("x-amzn-query-error", f"{error.query_name};{fault}")
        return Response(error.status, encode(content), JSON_TYPE, id_header, code, *pause)
    text = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{error.query_name}</Code><Message>{_escape_text(str(error))}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return Response(error.status, text.encode(), XML_TYPE, id_header, *pause)


def _render_value(action: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, Mapping):
        return _escape_text(str(value))
    return "".join(_write_element(action, name, inside) for name, inside in value.items() if inside is not None)


def _write_element(action: str, name: str, value: object) -> str:
    if isinstance(value, Mapping) and name in _PAIR_NAMES:
        tag, key = _PAIR_NAMES[name]
        return "".join(
            f"<{tag}><{key}>{_escape_text(item)}</{key}><Value>{_render_value(action, inside)}</Value></{tag}>"
            for item, inside in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        tag = f"{action}ResultEntry" if name == "Successful" else _ELEMENT_NAMES[name]
        return "".join(f"<{tag}>{_render_value(action, item)}</{tag}>" for item in value)
    return f"<{name}>{_render_value(action, value)}</{name}>"


def _escape_text(text: str) -> str:
    return escape(NOT_IN_XML.sub("\ufffd", text), {"\r": "&#13;"})
