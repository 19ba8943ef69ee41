"""The two protocols of SQS: AWS JSON 1.0, and Query with forms and XML. Both become the same names and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import msgspec

from queuey.errors import InvalidRequest
from queuey.facades.sqs.errors import AWAY, THROTTLED, SqsError
from queuey.web.requests import Request
from queuey.web.responses import Header, Response, encode
from queuey.web.validators import read_object

T = TypeVar("T")

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
JSON_KIND: Header = ("Content-Type", "application/x-amz-json-1.0")
XML_KIND: Header = ("Content-Type", "text/xml")
TARGET = "AmazonSQS."
MAX_FIELDS = 2000
"""Max fields of a form: a batch of ten messages with ten attributes each has some 450."""
MAX_DEPTH = 8
"""Max parts of a field's name."""
_REQUEST_ID = "x-amzn-requestid"

_LISTS = {
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
"""Fields of a form that are numbered, and what AWS JSON calls the list of them."""
_MAPS = {
    "Attribute": ("Attributes", "Name"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
    "Tag": ("Tags", "Key"),
}
"""The same of pairs, and what names one."""
_ELEMENTS = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "Result",
}
_PAIRS = {list_name: (one, key) for one, (list_name, key) in _MAPS.items()}
_EMPTY = _LISTS | {one: many for one, (many, _) in _MAPS.items()} | {name: name for name in (*_LISTS.values(), *_PAIRS)}
"""Fields that a client sends without a value when a list or a map is empty, and what AWS JSON calls them."""
_WITHOUT_RESULT = frozenset(
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
"""Actions whose answers have no element for a result; those of others have one, even an empty one."""
_NUMBER = re.compile("[0-9]{1,9}")
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot have, and no message either."""


class Call(NamedTuple):
    """Action and parameters of a request.

    Attributes:
        action: Its name.
        given: Its parameters, as AWS JSON has them.
    """

    action: str
    given: dict[str, Any]


def is_json(request: Request) -> bool:
    return "x-amz-target" in request.headers


def read_call(request: Request, body: bytes) -> Call:
    """Parses a request.

    Raises:
        SqsError: It is of neither protocol.
    """
    if is_json(request):
        target = request.headers["x-amz-target"]
        if not target.startswith(TARGET):
            raise SqsError("InvalidAction", f"X-Amz-Target is {target[:100]}, and not {TARGET}<action>.")
        try:
            given = read_object(body or b"{}")
        except InvalidRequest as error:
            raise SqsError("SerializationException", str(error)) from None
        if "tags" in given:
            given["Tags"] = given.pop("tags")
        return Call(target.removeprefix(TARGET), given)
    fields = _form(request.query) | _form(body.decode("latin-1"))
    action = fields.pop("Action", "")
    return Call(action, _nested(fields))


def parameters(call: Call, kind: type[T]) -> T:
    """Reads the parameters of an action.

    Raises:
        SqsError: One is missing, or of another type.
    """
    try:
        return msgspec.convert(call.given, kind, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        name = "MissingParameter" if "missing required field" in text else "InvalidParameterValue"
        raise SqsError(name, f"{call.action}: {text}") from None


def _form(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        text = f"The request is no form in UTF-8 with at most {MAX_FIELDS} fields."
        raise SqsError("MalformedQueryString", text) from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        # A signature does not cover their order.
        raise SqsError("MalformedQueryString", "A field is given twice.")
    return fields


def _nested(fields: Mapping[str, str]) -> dict[str, Any]:
    """Makes of ``Attribute.1.Name`` and the like what AWS JSON has."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        *path, last = name.split(".", MAX_DEPTH)
        place = tree
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise SqsError("MalformedQueryString", f"{name[:100]} is beside a field that has no parts.")
        if isinstance(place.get(last), dict):
            raise SqsError("MalformedQueryString", f"{name[:100]} is beside fields that are parts of it.")
        place[last] = value
    return _joined(tree)


def _joined(tree: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if value == "" and name in _EMPTY:
            found[_EMPTY[name]] = {} if _EMPTY[name] in _PAIRS else []
        elif name in _LISTS:
            found[_LISTS[name]] = [_joined(one) if isinstance(one, dict) else one for one in _numbered(name, value)]
        elif name in _MAPS:
            many, key = _MAPS[name]
            found[many] = {}
            for one in _numbered(name, value):
                if not isinstance(one, dict) or not isinstance(one.get(key), str):
                    raise SqsError("MissingParameter", f"{name} has no {key}.")
                content = one.get("Value", "")
                found[many][one[key]] = _joined(content) if isinstance(content, dict) else content
        else:
            found[name] = _joined(value) if isinstance(value, dict) else value
    return found


def _numbered(name: str, value: object) -> list[Any]:
    if not isinstance(value, dict) or not all(map(_NUMBER.fullmatch, value)):
        raise SqsError("MalformedQueryString", f"The fields {name} are not numbered, as {name}.1 is.")
    return [value[number] for number in sorted(value, key=int)]


def answer(request: Request, action: str, result: Mapping[str, Any], request_id: str) -> Response:
    named: Header = (_REQUEST_ID, request_id)
    if is_json(request):
        return Response(200, encode(result), JSON_KIND, named)
    inside = _xml(action, result)
    wrapped = "" if action in _WITHOUT_RESULT else f"<{action}Result>{inside}</{action}Result>"
    text = (
        f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{wrapped}<ResponseMetadata>'
        f"<RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
    )
    return Response(200, text.encode(), XML_KIND, named)


def error_answer(request: Request, error: SqsError, request_id: str) -> Response:
    fault = "Sender" if error.is_senders else "Receiver"
    named: Header = (_REQUEST_ID, request_id)
    pause: tuple[Header, ...] = (("Retry-After", "1"),) if error.name in {THROTTLED, AWAY} else ()
    if is_json(request):
        content = {"__type": f"com.amazonaws.sqs#{error.name}", "message": str(error)}
        code: Header = ("x-amzn-query-error", f"{error.query_name};{fault}")
        return Response(error.status, encode(content), JSON_KIND, named, code, *pause)
    text = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{error.query_name}</Code><Message>{_text(str(error))}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return Response(error.status, text.encode(), XML_KIND, named, *pause)


def _xml(action: str, value: object) -> str:
    """Writes what is inside an element."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, Mapping):
        return _text(str(value))
    return "".join(_element(action, name, inside) for name, inside in value.items() if inside is not None)


def _element(action: str, name: str, value: object) -> str:
    if isinstance(value, Mapping) and name in _PAIRS:
        one, key = _PAIRS[name]
        return "".join(
            f"<{one}><{key}>{_text(each)}</{key}><Value>{_xml(action, inside)}</Value></{one}>"
            for each, inside in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        one = f"{action}ResultEntry" if name == "Successful" else _ELEMENTS[name]
        return "".join(f"<{one}>{_xml(action, each)}</{one}>" for each in value)
    return f"<{name}>{_xml(action, value)}</{name}>"


def _text(text: str) -> str:
    """Writes text for XML, which cannot have most control characters."""
    return escape(NO_XML.sub("\ufffd", text), {"\r": "&#13;"})
