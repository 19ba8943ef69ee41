"""What version 1 does, operation by operation: the table that its OpenAPI document is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuey import __version__
from queuey.messages import LONGEST_NAME, MAX_WAIT
from queuey.service import Limits
from queuey.web import openapi
from queuey.web.openapi import JSON, Content, Operation, Parameter, ResponseSpec
from queuey.web.v1 import claim_schemas, post_keys, schemas
from queuey.web.v1.schedules import bodies

APP = "/v1/{app}"
QUEUE = APP + "/{queue}"
LIMITS = Limits()
"""Of these, only constants may be used here: the document is the same whatever the settings are."""
ANY_TEXT: dict[str, Any] = {"type": "string"}
FORM = "application/x-www-form-urlencoded"

SECURITY = {
    "type": "apiKey",
    "in": "header",
    "name": "Authorization",
    "description": "`Application <key>`; several credentials are separated by `;`.",
}

ABOUT = (
    "Malformed HTTP gets a status of 400 to 431 without a body from the HTTP server itself, and the connection is "
    "closed. Every other answer is one of those named here. The resources that the original had "
    "(an application, a queue, messages by id) answer 404, with `Allow`, to other methods than those named here, "
    "and 403 to callers without a credential. All others have HEAD where they have GET, and OPTIONS; other "
    "methods are 405 with `Allow`, and requests without a credential get 401. The header `Warning` names "
    "fields of a query that are not known; with `strict=1` they are refused by 400. On a post it says that a body "
    "which looks like a batch was stored as one message, because it was not sent as `application/json`."
)
ID = "([0-9]{1,9}:)?[0-9a-fA-F]{32}"


MOST_CLAIMS = 1000
"""Messages that one request claims, shows or settles."""
MOST_QUEUES = 10
"""Queues that one request claims from."""
MOST_OF_WORKER, MOST_OF_ERROR, MOST_OF_TEXT = 64, 200, 4096
"""Characters of what a worker calls itself, and of a reason."""
MOST_WITH_REASON = 100
"""Receipts that are released with a reason at a time: it is noted for each."""
MOST_STATES, MOST_OF_STATE = 100, 4096
"""Jobs whose states are set, or shown, at a time: each is written and read by itself; and bytes of a state."""
MOST_NESTED = 100
"""Objects and lists of a state within each other: readers of JSON give up at some depth."""
MAX_CLAIM = 43200
"""Seconds of the longest claim."""
DEFAULT_CLAIM = 30.0
DEFAULT_CLAIMS = 10
DEFAULT_COUNTED = 10_000
MOST_COUNTED = 100_000
"""Messages that one request has counted one by one."""


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


def _number(least: float, most: float, default: float | None = None, kind: str = "integer") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind, "minimum": least, "maximum": most}
    return schema if default is None else schema | {"default": default}


def _query(name: str, about: str, schema: dict[str, Any] | None = None) -> Parameter:
    return Parameter(name=name, place="query", about=about, schema=schema or ANY_TEXT)


def _header(name: str, about: str, schema: dict[str, Any] | None = None) -> Parameter:
    return Parameter(name=name, place="header", about=about, schema=schema or ANY_TEXT)


BOOLEAN = {"type": "string", "description": "`false`, `0` (any case) and nothing are false, else true"}
STRICT = _query("strict", "Refuse unknown fields of the query by 400 in place of naming them in `Warning`", BOOLEAN)
TTL = _header("X-TTL", "Seconds to live", _number(1, 33554432))
KEPT_HEADERS = f"Up to {LIMITS.max_headers} headers `X-Header-<name>`, whatever the name, are kept with the message."
ENCODING = _header(
    "X-Encoding", "`json`: the body is JSON, and readers get its value", {"type": "string", "enum": ["json"]}
)
AFTER = _header("X-After", "An id that the new ones must be above", _pattern("([0-9a-fA-F]{32}|[0-9a-fA-F-]{36})"))
POST_HEADERS = (
    TTL,
    _header("X-Partition", "Partition to write to", _number(1, 200)),
    _header(
        "X-Message-Key",
        "Picks the partition by hash; not with X-Partition",
        ANY_TEXT | {"maxLength": LIMITS.max_message_key},
    ),
    _header("X-Delay", "Seconds until the message is due", _number(0, 33554432, kind="number")),
    AFTER,
    ENCODING,
    _header(
        "Idempotency-Key",
        "Names this post: repeated under its key it stores nothing, and has the answer of the first",
        _pattern(f"({post_keys.PATTERN})"),
    ),
)
RANGE_PARAMETERS = (
    _query(
        "partitions", "Comma list of partitions, `*` for all", _pattern(r"(\*|([0-9]+(,[0-9]+)*)?)") | {"default": "1"}
    ),
    _query("limit", "Messages per partition, or in all with merge", _number(1, LIMITS.max_limit, LIMITS.default_limit)),
    _query("order", "Direction", {"type": "string", "enum": ["ascending", "descending"], "default": "ascending"}),
    _query("since", "Where to start, inclusive: an id, an instant or a cursor"),
    _query("after", "Only above it"),
    _query("before", "Only below it"),
    _query("until", "Only at or below it"),
    _query("delay", "0: ignore the read delay; the answer's cursor is not safe to keep then", BOOLEAN),
    _query(
        "early",
        "1: give as well what may be stored and is not certain yet, marked `early`; a cursor or an id: only above it",
    ),
    _query("merge", "One list in time order over the partitions", BOOLEAN),
    _query(
        "wait",
        "Seconds to wait if there is nothing to answer; at most the setting `max_wait`",
        _number(0, MAX_WAIT, 0, "number"),
    ),
    STRICT,
)
LAST_EVENT = _header("Last-Event-ID", "With a stream: the `id` of the last event that has come")
STREAM_PARAMETERS = (
    _query("queues", "Comma list of queues, each percent-encoded once more if it has a comma or a percent sign"),
    _query("since", "Where to begin: an instant, an id, `now`; by default with the oldest message"),
    _query("partitions", "Comma list of partitions, `*` for all", {**RANGE_PARAMETERS[0].schema, "default": "*"}),
    _query("limit", "Messages of a partition that are read together", _number(1, LIMITS.max_limit)),
    _query("early", "1: give each message as soon as it is stored, marked `early`, and again in its place", BOOLEAN),
    _query("read_marks", "1: tell of the caller's read marks when they move", BOOLEAN),
    _query("last_event_id", "As the header `Last-Event-ID`"),
)
EVENTS: Content = {"text/event-stream": {}}
STREAM = (
    "Events (WHATWG HTML, 9.2): `data` is a message, `id` the place to go on from. `read`: the caller's mark in a "
    "queue, and what is unread; `gone`: a queue is not read any more; `expiring`: the credential ends soon; `bye`: the "
    "stream ends, and why. HEAD answers with the head alone."
)
LIST_PARAMETERS = (
    _query("limit", "Names in the answer", _number(1, LIMITS.max_list, LIMITS.default_list)),
    _query("offset", "Queue name to start at, inclusive"),
    _query("details", "All fields", BOOLEAN),
    _query("include_count", "Message counts and all fields", BOOLEAN),
    STRICT,
)
MOST_MESSAGES = _query("limit", "Messages at most", _number(1, MOST_CLAIMS, DEFAULT_CLAIMS))
COUNT_PARAMETERS = (
    _query("limit", "Count up to so many, and estimate beyond", _number(1, MOST_COUNTED, DEFAULT_COUNTED)),
    STRICT,
)
CLAIM_PARAMETERS = (
    MOST_MESSAGES,
    _query(
        "ttl",
        "Seconds for which no other caller gets them; 0: claim nothing, show what would be claimed",
        _number(0, MAX_CLAIM, DEFAULT_CLAIM, "number"),
    ),
    _query(
        "wait", "Seconds to wait if there are none; at most the setting `max_wait`", _number(0, MAX_WAIT, 0, "number")
    ),
    _query(
        "partitions", "Comma list of partitions, `*` for all", _pattern(r"(\*|([0-9]+(,[0-9]+)*)?)") | {"default": "*"}
    ),
    _query("worker", "What the caller calls itself", {"type": "string", "maxLength": MOST_OF_WORKER}),
    STRICT,
)
RAW_HEADERS = {
    "X-Message-Id": "The message's id",
    "X-Timestamp": "Its time",
    "X-Partition": "Its partition",
    "Content-Disposition": "`attachment`",
    "X-Content-Type-Options": "`nosniff`",
}

RAW_JSON = {"description": "With raw: the JSON value that was posted"}

PLAIN = {"text/plain": ANY_TEXT}
PROBLEM = {"application/problem+json": schemas.Problem}
FAILURE: Content = {JSON: schemas.ErrorBody, **PROBLEM}
ERRORS = {
    400: ResponseSpec(FAILURE),
    401: ResponseSpec(FAILURE, {"WWW-Authenticate": "The scheme of credentials"}),
    403: ResponseSpec({**PLAIN, **PROBLEM}),
    404: ResponseSpec({**FAILURE, **PLAIN}),
    409: ResponseSpec(FAILURE, {"Retry-After": "Seconds after which to try again, where that is of use"}),
    413: ResponseSpec(FAILURE),
    415: ResponseSpec(FAILURE, {"Accept-Encoding": "`identity`: bodies are taken as they are"}),
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
    """Returns an operation that changes nothing and takes its parameters as a JSON body."""
    return _operation(f"POST {path}", summary, answer, body={JSON: question}, errors=WITH_BODY)


QUEUE_OPERATIONS = (
    _operation(
        "GET /v1/@all",
        "List applications, for operators",
        schemas.ApplicationList,
        parameters=(LIST_PARAMETERS[0], _query("offset", "Application to start at, inclusive"), STRICT),
    ),
    _operation(
        f"POST {APP}",
        "Create queue",
        {201: ResponseSpec({JSON: schemas.CreatedQueue}), 200: ResponseSpec({JSON: schemas.CreatedQueue})},
        body=_bodies(schemas.NewQueue),
        body_may_be_empty=True,
        errors=(*WITH_BODY, 409),
    ),
    _operation(f"GET {APP}", "List queues", schemas.QueueList, parameters=LIST_PARAMETERS),
    _operation(f"GET {APP}/_me", "Show the caller", schemas.Me),
    _asked_by_post(APP + "/_rights", "Ask what the caller may do", schemas.RightsAsked, schemas.Rights),
    _operation(
        f"PUT {QUEUE}",
        "Update queue",
        schemas.UpdatedQueue,
        body=_bodies(schemas.QueueFields),
        body_may_be_empty=True,
        errors=WITH_BODY,
    ),
    _operation(f"DELETE {QUEUE}", "Delete queue", schemas.Done),
    _operation(f"DELETE {QUEUE}/messages", "Purge queue", schemas.Done),
    _operation(f"GET {QUEUE}/info", "Describe queue", schemas.QueueInfo),
)
MESSAGE_OPERATIONS = (
    _operation(
        f"POST {QUEUE}",
        "Post messages, one with any body or a batch as JSON",
        {201: ResponseSpec({JSON: schemas.Posted}, {"Idempotent-Replayed": "`true`: stored before, by this key"})},
        about=f"{KEPT_HEADERS} With an Idempotency-Key: 409, a post with that key is being carried out; 422, the key "
        "is that of another post.",
        parameters=POST_HEADERS,
        body={JSON: schemas.MessagesToPost, "*/*": {}},
        errors=(*WITH_BODY, 409, 422),
    ),
    _operation(
        f"GET {QUEUE}",
        "Read range, or with `Accept: text/event-stream` follow the queue",
        {200: ResponseSpec({JSON: schemas.RangeRead, **EVENTS})},
        about="A stream takes `since` (also `now`), `partitions` (by default all), `limit` (of one read), "
        f"`read_marks` and `last_event_id`. {STREAM}",
        parameters=(*RANGE_PARAMETERS, LAST_EVENT),
    ),
    *(
        _operation(
            f"{method} {APP}/_stream",
            summary,
            {200: ResponseSpec(EVENTS)},
            about=f"Without queues: all that the credential may read, up to {LIMITS.max_queues_per_stream:,}. {STREAM}",
            **more,
        )
        for method, summary, more in (
            ("GET", "Follow queues", {"parameters": (*STREAM_PARAMETERS, LAST_EVENT, STRICT)}),
            (
                "POST",
                "Follow many queues",
                {
                    "parameters": (LAST_EVENT,),
                    "body": {JSON: schemas.StreamAsked},
                    "body_may_be_empty": True,
                    "errors": WITH_BODY,
                },
            ),
        )
    ),
    _asked_by_post(APP + "/_read", "Read several ranges", schemas.ManyRanges, schemas.ManyRead),
    _operation(
        "GET " + QUEUE + "/{ids}",
        "Get messages, by id",
        {200: ResponseSpec({JSON: (schemas.Fetched, RAW_JSON), "*/*": {}}, RAW_HEADERS)},
        parameters=(_query("raw", "With one id: the bytes as they were posted", BOOLEAN), STRICT),
        errors=TOO_LONG,
    ),
    _operation(
        "PUT " + QUEUE + "/{ids}",
        "Put messages, one body at all the ids",
        schemas.Done,
        about=KEPT_HEADERS,
        parameters=(TTL, ENCODING),
        body={"*/*": {}},
        errors=WITH_BODY,
    ),
    _operation("DELETE " + QUEUE + "/{ids}", "Delete messages, by id", schemas.Done),
)
NAME_OPERATIONS = (
    _operation(
        "POST " + QUEUE + "/named/{name}",
        "Create named message",
        {201: ResponseSpec({JSON: schemas.Posted}), 200: ResponseSpec({JSON: schemas.Posted})},
        about=f"201: stored. 200: the same message has the name. 409: another one has it. {KEPT_HEADERS}",
        parameters=(TTL, ENCODING),
        body={"*/*": {}},
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        "PUT " + QUEUE + "/named/{name}",
        "Replace named message",
        schemas.Posted,
        about=f"The message that has the name is removed; who had claimed it learns that at ack. {KEPT_HEADERS}",
        parameters=(TTL, ENCODING),
        body={"*/*": {}},
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        "GET " + QUEUE + "/named/{name}",
        "Get named message",
        {200: ResponseSpec({JSON: (schemas.Fetched, RAW_JSON), "*/*": {}}, RAW_HEADERS)},
        parameters=(_query("raw", "The bytes as they were posted", BOOLEAN), STRICT),
        errors=(*USUAL, 409),
    ),
    _operation("DELETE " + QUEUE + "/named/{name}", "Delete named message", schemas.Done, errors=(*USUAL, 409)),
)
OFFSET_OPERATIONS = (
    _asked_by_post(QUEUE + "/lag", "Count what lies behind cursors", schemas.Cursors, schemas.LagRead),
    _operation(f"GET {QUEUE}/offsets", "List groups", schemas.GroupList),
    _operation("GET " + QUEUE + "/offsets/{group}", "Show offsets", schemas.GroupState),
    _operation(
        "PUT " + QUEUE + "/offsets/{group}",
        "Record offsets",
        schemas.RecordedOffsets,
        about="409: an offset is not the expected one, and `partitions` says which, or the queue has 1,000 groups.",
        body={JSON: schemas.NewOffsets},
        errors=(*WITH_BODY, 409),
    ),
    _operation("DELETE " + QUEUE + "/offsets/{group}", "Forget group", schemas.Done),
)
UNREAD_OPERATIONS = (
    _operation(
        f"PUT {QUEUE}/read",
        "Mark messages as read",
        schemas.ReadMark,
        about="The mark is the caller's own. It does not go back without `back`. 409: 10,000 others have a mark.",
        body={JSON: schemas.NewReadMark},
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        f"POST {APP}/_unread",
        "Count unread messages",
        schemas.UnreadQueues,
        about=f"Without queues: of all that the credential may read, up to {LIMITS.max_queues_per_stream:,}.",
        body={JSON: schemas.UnreadAsked},
        body_may_be_empty=True,
        errors=WITH_BODY,
    ),
)


def _by_receipts(what: str, summary: str, body: Any) -> Operation:  # noqa: ANN401 - a msgspec type
    """Returns an operation that is about claims by their receipts."""
    return _operation(
        f"POST {QUEUE}/claims/{what}",
        summary,
        claim_schemas.Settled,
        about="409: some messages were delivered again, or replaced; `results` says which. All others are done.",
        body={JSON: body},
        errors=(*WITH_BODY, 409),
    )


CLAIM_OPERATIONS = (
    _operation(
        f"POST {QUEUE}/claims",
        "Claim messages",
        claim_schemas.Claims,
        about="409: this queue's consistency level cannot be claimed from. A receipt that is superseded does not fail "
        "the request. Sending the same request again is safe.",
        parameters=CLAIM_PARAMETERS,
        body={JSON: claim_schemas.ClaimRequest},
        body_may_be_empty=True,
        errors=(*WITH_BODY, 409),
    ),
    _operation(
        f"POST {APP}/_claims",
        "Claim messages of one of several queues, the first that has any",
        claim_schemas.ClaimsOfOne,
        about="Up to 10 queues, in order of preference; one wait is for all of them.",
        parameters=tuple(each for each in CLAIM_PARAMETERS if each.name != "partitions"),
        body={JSON: claim_schemas.ClaimOfSeveral},
        errors=(*WITH_BODY, 409),
    ),
    _by_receipts("ack", "Acknowledge messages", claim_schemas.Receipts),
    _by_receipts("renew", "Renew claims", claim_schemas.Renewal),
    _by_receipts("release", "Release claims", claim_schemas.Release),
    _by_receipts("state", "Set states of jobs", claim_schemas.States),
    _operation(f"GET {QUEUE}/claims", "Count claims", claim_schemas.ClaimCounts, errors=(*USUAL, 409)),
    _operation(f"DELETE {QUEUE}/claims", "Release all claims", schemas.Done, errors=(*USUAL, 409)),
    _operation(
        f"GET {QUEUE}/size",
        "Count messages, those that are not acknowledged",
        claim_schemas.QueueSize,
        parameters=COUNT_PARAMETERS,
        errors=(*USUAL, 409),
    ),
    _operation(
        f"GET {QUEUE}/backlog",
        "Say how much is to be done",
        claim_schemas.Backlog,
        parameters=COUNT_PARAMETERS,
        errors=(*USUAL, 409),
    ),
    _operation(
        f"GET {QUEUE}/jobs",
        "Show which messages are claimed, and by whom",
        claim_schemas.Jobs,
        parameters=(
            MOST_MESSAGES,
            _query("states", f"Show what workers say of them; `limit` is at most {MOST_STATES} then", BOOLEAN),
            STRICT,
        ),
        errors=(*USUAL, 409),
    ),
    _operation(
        f"GET {QUEUE}/peek",
        "Peek at messages, the oldest that are not acknowledged",
        schemas.Fetched,
        parameters=(MOST_MESSAGES, STRICT),
        errors=(*USUAL, 409),
    ),
)
EXPLAIN_OPERATION = _operation(
    "GET " + QUEUE + "/explain/{id}",
    "Explain message",
    schemas.Explanation,
    about="Says why a message is not read or claimed, yet or any more. An id that is not there is explained, too.",
)
MOVE_OPERATIONS = (
    _operation(
        f"POST {APP}/_moves",
        "Move messages to another queue",
        {202: ResponseSpec({JSON: schemas.Move}, {"Location": "Where to ask how it stands"})},
        about="Begins a job that moves what the queue has now. While it runs, the same request gives the same job. "
        "409: the queue is being moved elsewhere, or its consistency level cannot be claimed from.",
        body={JSON: schemas.NewMove},
        errors=(*WITH_BODY, 409),
    ),
    _operation(f"GET {APP}/_moves", "List moves", schemas.MoveList),
    _operation("GET " + APP + "/_moves/{move}", "Show move", schemas.Move),
    _operation(
        "DELETE " + APP + "/_moves/{move}",
        "Cancel move",
        schemas.Move,
        about="What has been moved stays in the target. A move that has ended stays as it is.",
    ),
)
SCHEDULE = APP + "/_schedules/{schedule}"
SCHEDULE_OPERATIONS = (
    _operation(
        f"PUT {SCHEDULE}",
        "Make or change schedule",
        {201: ResponseSpec({JSON: bodies.Schedule}), 200: ResponseSpec({JSON: bodies.Schedule})},
        about="Posts a message at certain times. It goes on when the credential that made it has ended. "
        "409: others change it at the same moment. 429: the application has 1,000.",
        body={JSON: bodies.SchedulePlan},
        errors=(*WITH_BODY, 409),
    ),
    _operation(f"GET {SCHEDULE}", "Show schedule", bodies.Schedule),
    _operation(
        f"GET {APP}/_schedules",
        "List schedules, up to 100",
        bodies.ScheduleList,
        parameters=(_query("start", "Schedule to start at, inclusive"), STRICT),
    ),
    _operation(f"DELETE {SCHEDULE}", "Remove schedule", schemas.Done, errors=(*USUAL, 409)),
    _operation(
        f"POST {SCHEDULE}/run",
        "Run schedule now",
        bodies.Schedule,
        about="Posts its message once more, also if it is paused; `last` says what became of that.",
    ),
)
HELLO_OPERATIONS = tuple(
    _operation(f"GET {path}", summary, schemas.Hello, errors=(400, 500, 503), anonymous=True)
    for path, summary in (("/", "Show service"), ("/v1", "Show api"))
)
DOCUMENT_OPERATION = _operation(
    "GET /v1/openapi.json",
    "Get this document",
    {200: ResponseSpec({JSON: {"type": "object"}})},
    errors=(400,),
    anonymous=True,
)
PAGE_OPERATION = _operation(
    "GET /docs",
    "Read this document, as a page",
    {200: ResponseSpec({"text/html": ANY_TEXT}, {"Content-Security-Policy": "No scripts, nothing from elsewhere"})},
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
        ("queuey.js", "Get the client for browsers", "text/javascript"),
        ("queuey.d.ts", "Get types of the client for browsers", "application/typescript"),
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


def document() -> dict[str, Any]:
    """Returns the OpenAPI document of version 1."""
    return openapi.document(
        title="Queuey",
        version=__version__,
        about=ABOUT,
        security=SECURITY,
        path_parameters=PATH_PARAMETERS,
        operations=OPERATIONS,
        errors=ERRORS,
    )
