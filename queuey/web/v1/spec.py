"""The operations of version 1, of which its OpenAPI document is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from queuey import __version__
from queuey.api import claims, errors, messages, progress, queues, reads, schedules, values
from queuey.messages import LONGEST_NAME, MAX_TTL
from queuey.partitions import MAX_PARTITIONS
from queuey.service import Limits
from queuey.web import openapi
from queuey.web.openapi import BOOLEAN, JSON, Api, Content, Example, Operation, Parameter, ResponseSpec
from queuey.web.v1 import post_keys

APP = "/v1/{app}"
QUEUE = APP + "/{queue}"
ANY_TEXT: dict[str, Any] = {"type": "string"}
FORM = "application/x-www-form-urlencoded"

SECURITY = {
    "type": "apiKey",
    "in": "header",
    "name": "Authorization",
    "description": "`Application <key>`; several credentials are separated by `;`.",
}

ABOUT = (
    "Malformed HTTP gets a status of 400 to 431 without a body, and the connection is closed. Every other answer is "
    "one of those named here. The header `Warning` names unknown fields of a query; with `strict=1` they get 400. On a "
    "post it says that a body that looks like a batch was stored as one message, because it was not sent as "
    "`application/json`. `/v1/{app}`, `/v1/{app}/{queue}` and `/v1/{app}/{queue}/{ids}` answer 404, with `Allow`, to "
    "methods that are not named here, and 403 to requests without a credential. All other resources support OPTIONS, "
    "and HEAD wherever there is GET; other methods get 405 with `Allow`, and requests without a credential get 401."
)
ID = "([0-9]{1,9}:)?[0-9a-fA-F]{32}"


def _pattern(pattern: str) -> dict[str, Any]:
    """Returns the schema of text that matches as a whole."""
    return {"type": "string", "pattern": f"^{pattern}$"}


PATH_PARAMETERS = (
    Parameter(name="app", place="path", about="Application", schema=_pattern("[^/]+")),
    Parameter(name="queue", place="path", about="Queue", schema=_pattern("[^/_][^/]*")),
    Parameter(
        name="ids",
        place="path",
        about="Comma list of `<id>` (partition 1) or `<partition>:<id>`",
        schema=_pattern(f"{ID}(,{ID})*"),
    ),
    Parameter(name="id", place="path", about="`<id>`: in every partition; or `<partition>:<id>`", schema=_pattern(ID)),
    Parameter(
        name="name", place="path", about="Name of a message", schema=_pattern("[^/]+") | {"maxLength": LONGEST_NAME}
    ),
    Parameter(name="move", place="path", about="Move", schema=_pattern("[^/]+")),
    Parameter(name="schedule", place="path", about="Schedule", schema=_pattern("[A-Za-z0-9._:@-]{1,100}")),
    Parameter(name="group", place="path", about="Consumer group", schema=_pattern("[A-Za-z0-9._:@-]{1,100}")),
)


def _number(least: float, most: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": least, "maximum": most}


def _header(name: str, about: str, schema: dict[str, Any]) -> Parameter:
    return Parameter(name=name, place="header", about=about, schema=schema)


STRICT = Parameter(
    name="strict",
    place="query",
    about="1: unknown fields of the query get 400; else the header `Warning` names them",
    schema=BOOLEAN,
)
TTL = _header("X-TTL", "Seconds to live; else the queue's `ttl`, or {default_ttl}", _number(1, MAX_TTL))
KEPT_HEADERS = "Up to {max_headers} headers `X-Header-<name>` are kept with the message."
ANY_BODY: Content = {"*/*": {"description": "Up to {max_body} bytes"}}
ENCODING = _header(
    "X-Encoding", "`json`: the body is JSON, and readers get its value", {"type": "string", "enum": ["json"]}
)
POST_HEADERS = (
    TTL,
    _header("X-Partition", "Partition to write to", _number(1, MAX_PARTITIONS)),
    _header(
        "X-Message-Key",
        "Picks the partition by hash; not with X-Partition",
        ANY_TEXT | {"x-limit": "max_message_key"},
    ),
    _header("X-Delay", "Seconds until the message is due", _number(0, MAX_TTL, kind="number")),
    _header("X-After", "The new ids are above this one", _pattern("([0-9a-fA-F]{32}|[0-9a-fA-F-]{36})")),
    ENCODING,
    _header(
        "Idempotency-Key",
        "A post repeated with its key stores nothing, and gets the first answer",
        _pattern(f"({post_keys.PATTERN})"),
    ),
)
LAST_EVENT = _header("Last-Event-ID", "For a stream: the `id` of the last event received", ANY_TEXT)
EVENTS: Content = {"text/event-stream": {}}
STREAM = (
    "Events (WHATWG HTML, 9.2): `data` is a message, `id` the position to resume from. `read`: the caller's mark in a "
    "queue moved; `gone`: a queue was deleted, or may not be read any more; `expiring`: the credential expires soon; "
    "`bye`: the stream ends, with the reason. HEAD answers with the head alone."
)
OF_ALL = f"Without `queues`: all that the credential may read, up to {{max_queues_per_stream}}. {STREAM}"
RAW_HEADERS = {
    "X-Message-Id": "The message's id",
    "X-Timestamp": "Its time",
    "X-Partition": "Its partition",
    "Content-Disposition": "`attachment`",
    "X-Content-Type-Options": "`nosniff`",
}

RAW_JSON = {"description": "With raw: the JSON value that was posted"}

PLAIN = {"text/plain": ANY_TEXT}
PROBLEM = {"application/problem+json": errors.Problem}
FAILURE: Content = {JSON: errors.ErrorBody, **PROBLEM}
ERRORS = {
    400: ResponseSpec(FAILURE),
    401: ResponseSpec(FAILURE, {"WWW-Authenticate": "The scheme of credentials"}),
    403: ResponseSpec({**PLAIN, **PROBLEM}),
    404: ResponseSpec({**FAILURE, **PLAIN}),
    409: ResponseSpec(FAILURE, {"Retry-After": "Seconds after which to try again, if that can help"}),
    413: ResponseSpec(FAILURE),
    415: ResponseSpec(FAILURE, {"Accept-Encoding": "`identity`: bodies are not compressed"}),
    422: ResponseSpec(FAILURE),
    429: ResponseSpec(FAILURE, {"Retry-After": "Seconds after which to try again"}),
    500: ResponseSpec(FAILURE),
    503: ResponseSpec(FAILURE, {"Retry-After": "Seconds after which to try again"}),
}
USUAL = (400, 401, 403, 404, 429, 500, 503)
TOO_LONG = (*USUAL, 413)
WITH_BODY = (*TOO_LONG, 415)


def _operation(
    request: str,
    summary: str,
    answer: Any,  # noqa: ANN401 - a msgspec type
    *,
    errors: Sequence[int] = USUAL,
    **more: Any,  # noqa: ANN401 - other fields of an operation
) -> Operation:
    """Returns the operation of a request (``GET /path``).

    ``answer`` is the type of the JSON that 200 comes with, or all answers by status.
    """
    method, path = request.split(" ")
    success = answer if isinstance(answer, dict) else {200: ResponseSpec({JSON: answer})}
    return Operation(method=method, path=path, summary=summary, success=success, errors=errors, **more)


def _bodies(kind: Any) -> Content:  # noqa: ANN401 - a msgspec type
    return {JSON: kind, FORM: kind}


def _asked_by_post(path: str, summary: str, question: Any, answer: Any) -> Operation:  # noqa: ANN401 - msgspec types
    """Returns a read-only operation whose parameters are a JSON body."""
    return _operation(f"POST {path}", summary, answer, body={JSON: question}, errors=WITH_BODY)


QUEUE_OPERATIONS = (
    _operation(
        f"POST {APP}",
        "Create queue",
        {201: ResponseSpec({JSON: queues.CreatedQueue}), 200: ResponseSpec({JSON: queues.CreatedQueue})},
        body=_bodies(queues.NewQueue),
        body_may_be_empty=True,
        errors=(*WITH_BODY, 409),
    ),
    _operation(f"GET {APP}", "List queues", queues.QueueList, query=queues.QueueListQuery),
    _operation(f"GET {APP}/_me", "Describe caller", queues.Me),
    _asked_by_post(APP + "/_rights", "List rights, of the caller in queues", queues.RightsAsked, queues.Rights),
    _operation(
        f"PUT {QUEUE}",
        "Update queue",
        queues.UpdatedQueue,
        body=_bodies(queues.QueueFields),
        body_may_be_empty=True,
        errors=WITH_BODY,
    ),
    _operation(f"DELETE {QUEUE}", "Delete queue", values.Done),
    _operation(f"DELETE {QUEUE}/messages", "Purge queue", values.Done),
    _operation(f"GET {QUEUE}/info", "Describe queue", queues.QueueInfo),
    _operation(
        "GET /v1/@all",
        "List applications, for operators",
        queues.ApplicationList,
        query=queues.ListQuery,
    ),
)
MESSAGE_OPERATIONS = (
    _operation(
        f"POST {QUEUE}",
        "Post messages, one with any body or a batch as JSON",
        {201: ResponseSpec({JSON: messages.Posted}, {"Idempotent-Replayed": "`true`: stored before, by this key"})},
        about=f"{KEPT_HEADERS} With an Idempotency-Key: 409, a post with this key is being carried out; 422, the "
        "key belongs to another post.",
        parameters=POST_HEADERS,
        body={JSON: messages.MessagesToPost, **ANY_BODY},
        errors=(*WITH_BODY, 409, 422),
    ),
    _operation(
        f"GET {QUEUE}",
        "Read messages, or with `Accept: text/event-stream` follow the queue",
        {200: ResponseSpec({JSON: reads.RangeRead, **EVENTS})},
        about="A stream takes `since` (also `now`), `partitions` (by default all), `limit` (of one read), "
        f"`read_marks` and `last_event_id`. {STREAM}",
        query=reads.RangeQuery,
        parameters=(LAST_EVENT,),
    ),
    _operation(
        f"GET {APP}/_stream",
        "Follow queues",
        {200: ResponseSpec(EVENTS)},
        about=OF_ALL,
        query=reads.StreamQuery,
        parameters=(LAST_EVENT,),
    ),
    _operation(
        f"POST {APP}/_stream",
        "Follow many queues",
        {200: ResponseSpec(EVENTS)},
        about=OF_ALL,
        parameters=(LAST_EVENT,),
        body={JSON: reads.StreamAsked},
        body_may_be_empty=True,
        errors=WITH_BODY,
    ),
    _asked_by_post(APP + "/_read", "Read several queues", reads.ManyRanges, reads.ManyRead),
    _operation(
        "GET " + QUEUE + "/{ids}",
        "Get messages, by id",
        {200: ResponseSpec({JSON: (reads.Fetched, RAW_JSON), "*/*": {}}, RAW_HEADERS)},
        query=messages.FetchQuery,
        errors=TOO_LONG,
    ),
    _operation(
        "PUT " + QUEUE + "/{ids}",
        "Put messages, one body at all ids",
        values.Done,
        about=KEPT_HEADERS,
        parameters=(TTL, ENCODING),
        body=ANY_BODY,
        errors=WITH_BODY,
    ),
    _operation("DELETE " + QUEUE + "/{ids}", "Delete messages, by id", values.Done),
)
NAME_OPERATIONS = (
    _operation(
        "POST " + QUEUE + "/named/{name}",
        "Create named message",
        {201: ResponseSpec({JSON: messages.Posted}), 200: ResponseSpec({JSON: messages.Posted})},
        about=f"201: stored. 200: the same message has the name. 409: another one has it. {KEPT_HEADERS}",
        parameters=(TTL, ENCODING),
        body=ANY_BODY,
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        "PUT " + QUEUE + "/named/{name}",
        "Replace named message",
        messages.Posted,
        about=f"The message that has the name is removed; a caller that has claimed it gets 409 at ack. {KEPT_HEADERS}",
        parameters=(TTL, ENCODING),
        body=ANY_BODY,
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        "GET " + QUEUE + "/named/{name}",
        "Get named message",
        {200: ResponseSpec({JSON: (reads.Fetched, RAW_JSON), "*/*": {}}, RAW_HEADERS)},
        query=messages.FetchQuery,
        errors=(*USUAL, 409),
    ),
    _operation("DELETE " + QUEUE + "/named/{name}", "Delete named message", values.Done, errors=(*USUAL, 409)),
)
OFFSET_OPERATIONS = (
    _asked_by_post(QUEUE + "/lag", "Measure lag, behind cursors", progress.Cursors, progress.LagRead),
    _operation(f"GET {QUEUE}/offsets", "List groups", progress.GroupList),
    _operation("GET " + QUEUE + "/offsets/{group}", "Show offsets", progress.Offsets),
    _operation(
        "PUT " + QUEUE + "/offsets/{group}",
        "Record offsets",
        progress.RecordedOffsets,
        about="409: an offset is not the expected one (`partitions` shows which), or the queue has 1,000 groups.",
        body={JSON: progress.NewOffsets},
        errors=(*WITH_BODY, 409),
    ),
    _operation("DELETE " + QUEUE + "/offsets/{group}", "Delete group", values.Done),
)
UNREAD_OPERATIONS = (
    _operation(
        f"PUT {QUEUE}/read",
        "Mark messages as read",
        reads.ReadMark,
        about="The mark is the caller's own. It does not go back without `back`. 409: 10,000 others have a mark.",
        body={JSON: reads.NewReadMark},
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        f"POST {APP}/_unread",
        "Count unread messages",
        reads.UnreadQueues,
        about="Without `queues`: all that the credential may read, up to {max_queues_per_stream}.",
        body={JSON: reads.UnreadAsked},
        body_may_be_empty=True,
        errors=WITH_BODY,
    ),
)


def _by_receipts(what: str, summary: str, body: Any) -> Operation:  # noqa: ANN401 - a msgspec type
    return _operation(
        f"POST {QUEUE}/claims/{what}",
        summary,
        claims.Settled,
        about="409: some messages were delivered again, moved or replaced (see `results`). All others succeeded.",
        body={JSON: body},
        errors=(*WITH_BODY, 409),
    )


CLAIM_OPERATIONS = (
    _operation(
        f"POST {QUEUE}/claims",
        "Claim messages",
        claims.Claims,
        about="409: the queue's consistency level does not allow claims. A superseded receipt fails no request. "
        "Repeating the request is safe.",
        query=claims.ClaimQuery,
        body={JSON: claims.ClaimRequest},
        body_may_be_empty=True,
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        f"POST {APP}/_claims",
        "Claim from several queues, the first that has messages",
        claims.ClaimsOfOne,
        about="Up to 10 queues, in order of preference. `wait` waits for all of them. `refused` has those that cannot "
        "be claimed from; if that is all of them, the status is that of the first.",
        query=claims.SeveralClaimsQuery,
        body={JSON: claims.ClaimOfSeveral},
        errors=(*WITH_BODY, 409),
    ),
    _by_receipts("ack", "Acknowledge messages", claims.SomeReceipts),
    _by_receipts("renew", "Renew claims", claims.Renewal),
    _by_receipts("release", "Release claims", claims.Release),
    _by_receipts("state", "Set job states", claims.States),
    _operation(f"GET {QUEUE}/claims", "Count claims", claims.ClaimCounts, errors=(*USUAL, 409)),
    _operation(f"DELETE {QUEUE}/claims", "Release all claims", values.Done, errors=(*USUAL, 409)),
    _operation(
        f"GET {QUEUE}/size",
        "Count messages, without acknowledged ones",
        claims.QueueSize,
        query=claims.CountQuery,
        errors=(*USUAL, 409),
    ),
    _operation(
        f"GET {QUEUE}/backlog",
        "Count backlog, by what messages wait for",
        claims.Backlog,
        query=claims.CountQuery,
        errors=(*USUAL, 409),
    ),
    _operation(
        f"GET {QUEUE}/jobs",
        "List jobs, claimed messages and their workers",
        claims.Jobs,
        query=claims.JobsQuery,
        errors=(*USUAL, 409),
    ),
    _operation(
        f"GET {QUEUE}/peek",
        "Peek at messages, the oldest without acknowledged ones",
        reads.Fetched,
        query=claims.LimitQuery,
        errors=(*USUAL, 409),
    ),
)
EXPLAIN_OPERATION = _operation(
    "GET " + QUEUE + "/explain/{id}",
    "Explain message",
    reads.Explanation,
    about="Why a message is not read or claimed. The answer is 200 even if the message does not exist.",
)
MOVE_OPERATIONS = (
    _operation(
        f"POST {APP}/_moves",
        "Move messages to another queue",
        {202: ResponseSpec({JSON: progress.MoveState}, {"Location": "Address of the move"})},
        about="Starts a job that moves the messages that the queue has now. While it runs, the same request returns "
        "the same job. 409: the queue is being moved to another one, or its consistency level does not allow claims.",
        body={JSON: progress.NewMove},
        errors=(*WITH_BODY, 409),
    ),
    _operation(f"GET {APP}/_moves", "List moves", progress.MoveList),
    _operation("GET " + APP + "/_moves/{move}", "Show move", progress.MoveState),
    _operation(
        "DELETE " + APP + "/_moves/{move}",
        "Cancel move",
        progress.MoveState,
        about="Moved messages stay in the target. A move that has ended does not change.",
    ),
)
SCHEDULE = APP + "/_schedules/{schedule}"
SCHEDULE_OPERATIONS = (
    _operation(
        f"PUT {SCHEDULE}",
        "Create or change schedule",
        {201: ResponseSpec({JSON: schedules.ScheduleState}), 200: ResponseSpec({JSON: schedules.ScheduleState})},
        about="Posts a message at certain times, even after the credential that created it has expired. "
        "409: another request changes it at the same moment. 429: the application has 1,000 schedules.",
        body={JSON: schedules.SchedulePlan},
        errors=(*WITH_BODY, 409),
    ),
    _operation(f"GET {SCHEDULE}", "Show schedule", schedules.ScheduleState),
    _operation(
        f"GET {APP}/_schedules",
        "List schedules, up to 100",
        schedules.ScheduleList,
        query=schedules.ScheduleQuery,
    ),
    _operation(f"DELETE {SCHEDULE}", "Delete schedule", values.Done, errors=(*USUAL, 409)),
    _operation(
        f"POST {SCHEDULE}/run",
        "Run schedule now",
        schedules.ScheduleState,
        about="Posts its message once more, even if it is paused. `last` has the outcome.",
    ),
)
HELLO_OPERATIONS = tuple(
    _operation(f"GET {path}", summary, queues.Hello, errors=(400, 500, 503), anonymous=True)
    for path, summary in (("/", "Show service"), ("/v1", "Show API"))
)
DOCUMENT_OPERATION = _operation(
    "GET /v1/openapi.json",
    "Get OpenAPI document",
    {200: ResponseSpec({JSON: {"type": "object"}})},
    errors=(400,),
    anonymous=True,
)
PAGE_OPERATION = _operation(
    "GET /docs",
    "Get API page, made of the OpenAPI document",
    {200: ResponseSpec({"text/html": ANY_TEXT}, {"Content-Security-Policy": "Only what is in the page"})},
    errors=(400,),
    anonymous=True,
)
CLIENT_OPERATIONS = tuple(
    _operation(
        f"GET /client/{name}",
        summary,
        {200: ResponseSpec({kind: ANY_TEXT}, {"Access-Control-Allow-Origin": "`*`: pages of any origin may load it"})},
        errors=(400,),
        anonymous=True,
    )
    for name, summary, kind in (
        ("queuey.js", "Get browser client", "text/javascript"),
        ("queuey.d.ts", "Get browser client types", "application/typescript"),
    )
)
OPERATIONS = (
    *QUEUE_OPERATIONS,
    *MESSAGE_OPERATIONS,
    *NAME_OPERATIONS,
    *OFFSET_OPERATIONS,
    *UNREAD_OPERATIONS,
    *CLAIM_OPERATIONS,
    EXPLAIN_OPERATION,
    *MOVE_OPERATIONS,
    *SCHEDULE_OPERATIONS,
    *HELLO_OPERATIONS,
    DOCUMENT_OPERATION,
    PAGE_OPERATION,
    *CLIENT_OPERATIONS,
)
EXAMPLES = msgspec.json.decode(Path(__file__).with_name("examples.json").read_bytes(), type=list[Example])
"""Of every operation one, in an order in which they can be sent."""


def document(limits: Limits | None = None) -> dict[str, Any]:
    """Returns the OpenAPI document of version 1 with the limits in force, or the usual ones; without an address."""
    api = Api(
        title="Queuey",
        version=__version__,
        about=ABOUT,
        security=SECURITY,
        path_parameters=PATH_PARAMETERS,
        strict=STRICT,
        operations=OPERATIONS,
        errors=ERRORS,
        examples=EXAMPLES,
    )
    return openapi.document(api, limits or Limits())
