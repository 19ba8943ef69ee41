"""The table of all operations of version 1, from which its routes and its OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from queuey import __version__
from queuey.access.operations import Operation
from queuey.api import claims, groups, jobs, messages, progress, queues, schedules, values
from queuey.app.file_views import FileViews, HelloView
from queuey.claims.views import ClaimViews
from queuey.groups.member_views import GroupViews
from queuey.groups.offset_views import OffsetViews
from queuey.messages.message_views import MessageViews
from queuey.messages.name_views import NameViews
from queuey.messages.range_views import RangeViews
from queuey.messages.read_mark_views import UnreadViews
from queuey.messages.stream_views import StreamViews
from queuey.model.messages import OPERATORS
from queuey.model.rights import Action
from queuey.moves.views import MoveViews
from queuey.operations.explanation_views import ExplanationViews
from queuey.queues.views import QueueViews
from queuey.runtime.limits import Limits
from queuey.schedules.views import ScheduleViews
from queuey.web import openapi, parameters
from queuey.web.openapi import JSON, Api, Example, ResponseSpec, Tag
from queuey.web.parameters import (
    ANY_BODY,
    ANY_TEXT,
    BODY_ERRORS,
    ENCODING,
    EVENTS,
    FORM,
    KEPT_HEADERS_TEXT,
    LAST_EVENT,
    POST_HEADERS,
    RAW_HEADERS,
    RAW_JSON,
    STREAM_OF_ALL_TEXT,
    STREAM_TEXT,
    TTL,
    USUAL_ERRORS,
)

APP = "/v1/{app}"
QUEUE = APP + "/{queue}"
SCHEDULE = APP + "/_schedules/{schedule}"
CONSUMERS = APP + "/_groups/{group}"
MEMBER = CONSUMERS + "/members/{member}"
IDS, NAMED, GROUP, MOVE, JOB = (
    QUEUE + "/{ids}",
    QUEUE + "/named/{name}",
    QUEUE + "/offsets/{group}",
    APP + "/_moves/{move}",
    QUEUE + "/jobs/{id}",
)
TAGS = {
    Tag("Queues", "Create queues, set their options, and see what they hold."): (
        QueueViews,
        ExplanationViews.explain_queue,
    ),
    Tag("Messages", "Send messages, read them by time as often as you like, and follow queues live."): (
        MessageViews,
        RangeViews,
        StreamViews,
        ExplanationViews.explain_message,
    ),
    Tag("Named messages", "Messages that you find and replace by a name of your choice."): (NameViews,),
    Tag("Unread", "What each user has read, across all devices."): (UnreadViews,),
    Tag("Jobs", "Claim messages as jobs, acknowledge or release them, and see what became of them."): (ClaimViews,),
    Tag("Groups", "Consumers that share the partitions of queues."): (GroupViews,),
    Tag("Offsets", "How far a consumer group has processed a queue, and its lag."): (OffsetViews,),
    Tag("Schedules", "Post messages at scheduled times."): (ScheduleViews,),
    Tag("Moves", "Move the messages of one queue to another."): (MoveViews,),
    Tag("Access", "Who the caller is, and what it may do."): (QueueViews.me, QueueViews.rights),
    Tag("Service", "The service itself, its API document and its browser client. No key is needed."): (
        HelloView,
        FileViews,
    ),
    Tag("Operators", "For operators of the service, with a key of `@all`."): (QueueViews.applications,),
}
"""Tags of operations, with the views that have them: classes, or single views, whose class does not count then."""
_TAG_NAMES = {owner.__qualname__: tag.name for tag, owners in TAGS.items() for owner in owners}


def _operation(
    request: str,
    summary: str,
    answer: Any,  # noqa: ANN401 - a msgspec type
    view: Callable[..., Any],
    action: Action | None = None,
    *,
    body: Any = None,  # noqa: ANN401 - a msgspec type
    further_errors: Sequence[int] = (),
    **more: Any,  # noqa: ANN401 - other fields of an operation
) -> Operation:
    """Returns the operation of a request line such as ``GET /path``.

    ``answer`` is the type of the JSON answer with status 200, or all answers by status. ``body`` is the type of a JSON
    body, or all bodies by media type. ``further_errors`` has the error statuses besides the usual ones.
    """
    method, path = request.split(" ")
    success = answer if isinstance(answer, dict) else {200: ResponseSpec({JSON: answer})}
    more["body"] = {} if body is None else body if isinstance(body, dict) else {JSON: body}
    more.setdefault("errors", (*(USUAL_ERRORS if body is None else BODY_ERRORS), *further_errors))
    name = view.__qualname__
    more["tag"] = _TAG_NAMES.get(name) or _TAG_NAMES[name.partition(".")[0]]
    return Operation(method=method, path=path, summary=summary, success=success, view=view, action=action, **more)


def _json_answers(kind: Any, *statuses: int) -> dict[int, ResponseSpec]:  # noqa: ANN401 - a msgspec type
    return {status: ResponseSpec({JSON: kind}) for status in statuses}


def _claims_operation(action_word: str, summary: str, view: Callable[..., Any], body: Any) -> Operation:  # noqa: ANN401 - a msgspec type
    """Returns an operation on claims, which answers 409 with the same body if some of them failed."""
    about = "409: some messages were delivered again, moved or replaced (see `results`). All others succeeded."
    path = f"POST {QUEUE}/claims/{action_word}"
    return _operation(path, summary, claims.Settled, view, about=about, body=body, further_errors=(409,))


def _anonymous_operation(path: str, summary: str, answer: Any, view: Callable[..., Any], *errors: int) -> Operation:  # noqa: ANN401 - a msgspec type
    return _operation(f"GET {path}", summary, answer, view, errors=(400, *errors), anonymous=True)


def _client_operation(name: str, summary: str, kind: str) -> Operation:
    headers = {"Access-Control-Allow-Origin": "`*`: pages of any origin may load it"}
    return _anonymous_operation(
        f"/client/{name}", summary, {200: ResponseSpec({kind: ANY_TEXT}, headers)}, FileViews.client
    )


MESSAGE_OR_RAW = {200: ResponseSpec({JSON: (messages.Fetched, RAW_JSON), "*/*": {}}, RAW_HEADERS)}
STREAMED: dict[str, Any] = {"about": STREAM_OF_ALL_TEXT, "parameters": (LAST_EVENT,), "reads": True}
STORED: dict[str, Any] = {"parameters": (TTL, ENCODING), "body": ANY_BODY}
OPERATIONS = (
    _operation(
        f"POST {APP}",
        "Create queue",
        _json_answers(queues.CreatedQueue, 201, 200),
        QueueViews.create,
        body={JSON: queues.NewQueue, FORM: queues.NewQueue},
        body_may_be_empty=True,
        further_errors=(409,),
    ),
    _operation(f"GET {APP}", "List queues", queues.QueueList, QueueViews.list, query=queues.QueueListQuery),
    _operation(f"GET {APP}/_me", "Describe caller", queues.Me, QueueViews.me),
    _operation(
        f"POST {APP}/_rights",
        "List rights, of the caller in queues",
        queues.Rights,
        QueueViews.rights,
        body=queues.RightsAsked,
    ),
    _operation(
        f"PUT {QUEUE}",
        "Update queue",
        queues.UpdatedQueue,
        QueueViews.update,
        body={JSON: queues.QueueFields, FORM: queues.QueueFields},
        body_may_be_empty=True,
    ),
    _operation(f"DELETE {QUEUE}", "Delete queue", values.Done, QueueViews.delete, "admin"),
    _operation(f"DELETE {QUEUE}/messages", "Purge queue", values.Done, QueueViews.purge, "admin"),
    _operation(f"GET {QUEUE}/info", "Describe queue", queues.QueueInfo, QueueViews.info, "measure"),
    _operation(
        f"GET /v1/{OPERATORS}",
        "List applications, for operators",
        queues.ApplicationList,
        QueueViews.applications,
        query=queues.ListQuery,
    ),
    _operation(
        f"POST {QUEUE}",
        "Post messages, one with any body or a batch as JSON",
        {201: ResponseSpec({JSON: messages.Posted}, {"Idempotent-Replayed": "`true`: stored before, with this key"})},
        MessageViews.post,
        about=f"{KEPT_HEADERS_TEXT} With an Idempotency-Key, 409 means that a post with this key is still running, and "
        "422 that the key belongs to another post.",
        parameters=POST_HEADERS,
        body={JSON: messages.MessagesToPost, **ANY_BODY},
        further_errors=(409, 422),
    ),
    _operation(
        f"GET {QUEUE}",
        "Read messages, or with `Accept: text/event-stream` follow the queue",
        {200: ResponseSpec({JSON: messages.RangeRead, **EVENTS})},
        StreamViews.read,
        about="A stream takes `since` (also `now`), `partitions` (default: all), `limit` (messages per read), "
        f"`read_marks` and `last_event_id`. {STREAM_TEXT}",
        query=messages.RangeQuery,
        parameters=(LAST_EVENT,),
        reads=True,
    ),
    _operation(
        f"GET {APP}/_stream",
        "Follow queues",
        {200: ResponseSpec(EVENTS)},
        StreamViews.stream_queues,
        query=messages.StreamQuery,
        **STREAMED,
    ),
    _operation(
        f"POST {APP}/_stream",
        "Follow many queues",
        {200: ResponseSpec(EVENTS)},
        StreamViews.stream_queues,
        body=messages.StreamAsked,
        body_may_be_empty=True,
        **STREAMED,
    ),
    _operation(
        f"POST {APP}/_read",
        "Read several queues",
        messages.ManyRead,
        RangeViews.read_many,
        body=messages.ManyRanges,
        reads=True,
    ),
    _operation(
        f"GET {IDS}",
        "Get messages, by id",
        MESSAGE_OR_RAW,
        MessageViews.fetch,
        query=messages.FetchQuery,
        further_errors=(413,),
        page=True,
    ),
    _operation(
        f"PUT {IDS}",
        "Put messages, one body at all ids",
        values.Done,
        MessageViews.put,
        about=KEPT_HEADERS_TEXT,
        **STORED,
    ),
    _operation(f"DELETE {IDS}", "Delete messages, by id", values.Done, MessageViews.delete),
    _operation(
        f"POST {NAMED}",
        "Create named message",
        _json_answers(messages.Posted, 201, 200),
        NameViews.create,
        about="201: stored. 200: the same message has the name already; `merged` is its status as a job. 409: another "
        f"message has it. {KEPT_HEADERS_TEXT}",
        further_errors=(409,),
        **STORED,
    ),
    _operation(
        f"PUT {NAMED}",
        "Replace named message",
        messages.Posted,
        NameViews.replace,
        about="Removes the message that has the name. A caller that has claimed it gets 409 when it acknowledges it. "
        f"{KEPT_HEADERS_TEXT}",
        further_errors=(409,),
        **STORED,
    ),
    _operation(
        f"GET {NAMED}",
        "Get named message",
        MESSAGE_OR_RAW,
        NameViews.fetch,
        query=messages.FetchQuery,
        further_errors=(409,),
        reads=True,
    ),
    _operation(f"DELETE {NAMED}", "Delete named message", values.Done, NameViews.delete, further_errors=(409,)),
    _operation(f"GET {QUEUE}/offsets", "List groups", progress.GroupList, OffsetViews.groups, "measure"),
    _operation(f"GET {GROUP}", "Show offsets", progress.Offsets, OffsetViews.show, "measure"),
    _operation(
        f"PUT {GROUP}",
        "Record offsets",
        progress.RecordedOffsets,
        OffsetViews.record,
        about="409: an offset is not the expected one (`partitions` shows which), or the queue has 1,000 groups. While "
        "the group has members, only they can commit, with `commits`. Then 409 means that the member does not own the "
        "partitions in `not_owned`; all others were recorded. 404 `MemberGone`: join again.",
        body={JSON: (progress.NewOffsets, groups.MemberCommits)},
        further_errors=(409,),
    ),
    _operation(f"DELETE {GROUP}", "Delete group", values.Done, OffsetViews.forget, "claim", further_errors=(409,)),
    _operation(
        f"POST {QUEUE}/lag",
        "Measure lag, behind cursors",
        progress.LagRead,
        OffsetViews.lag,
        "measure",
        body=progress.Cursors,
    ),
    _operation(
        f"POST {CONSUMERS}/members",
        "Join group",
        _json_answers(groups.Joined, 201),
        GroupViews.join,
        about="Needs a key of the application, or a role, with `read` and `claim`. 409: the group is served in another "
        "data centre.",
        body=groups.NewMember,
        further_errors=(409,),
    ),
    _operation(
        f"POST {MEMBER}",
        "Send heartbeat, of a member",
        groups.HeartbeatAnswer,
        GroupViews.heartbeat,
        about="Reports the partitions that the member owns and gives back. The answer comes at once if the member has "
        "something to do, otherwise after `wait` seconds. 404 `MemberGone`: join again.",
        body=groups.Heartbeat,
        further_errors=(409,),
        reads=True,
    ),
    _operation(
        f"DELETE {MEMBER}",
        "Leave group",
        values.Done,
        GroupViews.leave,
        about="With a member's public number in place of its id: remove it, which needs `admin` for all queues.",
        query=groups.LeaveQuery,
        further_errors=(409,),
    ),
    _operation(
        f"GET {APP}/_groups",
        "List consumer groups, of the application",
        groups.GroupNames,
        GroupViews.list,
        query=groups.GroupListQuery,
    ),
    _operation(f"GET {CONSUMERS}", "Show consumer group", groups.GroupInfo, GroupViews.show, query=groups.GroupQuery),
    _operation(
        f"DELETE {CONSUMERS}",
        "Delete consumer group",
        values.Done,
        GroupViews.delete,
        about="Needs `admin` for all queues. Keeps the group's offsets. 409: the group has members (see `force`).",
        query=groups.DeleteQuery,
        further_errors=(409,),
    ),
    _operation(
        f"PUT {QUEUE}/read",
        "Mark messages as read",
        messages.ReadMark,
        UnreadViews.mark,
        about="The mark belongs to the caller. It moves back only with `back`. 409: 10,000 others have a mark.",
        body=messages.NewReadMark,
        further_errors=(409,),
    ),
    _operation(
        f"POST {APP}/_unread",
        "Count unread messages",
        messages.UnreadQueues,
        UnreadViews.count,
        about="Without `queues`, counts in all that the credential may read, up to {max_queues_per_stream}.",
        body=messages.UnreadAsked,
        body_may_be_empty=True,
        page=True,
    ),
    _operation(
        f"POST {QUEUE}/claims",
        "Claim messages",
        claims.Claims,
        ClaimViews.claim,
        about="409: the queue's consistency level does not allow claims. A superseded receipt does not fail the "
        "request. Repeating the request is safe.",
        query=claims.ClaimQuery,
        body=claims.ClaimRequest,
        body_may_be_empty=True,
        further_errors=(409,),
        reads=True,
    ),
    _operation(
        f"POST {APP}/_claims",
        "Claim from several queues, the first that has messages",
        claims.ClaimsOfOne,
        ClaimViews.claim_first,
        about="Up to 10 queues, in order of preference. `wait` waits for all of them. `refused` has the queues that "
        "cannot be claimed from. If that is all of them, the status is that of the first.",
        query=claims.SeveralClaimsQuery,
        body=claims.ClaimOfSeveral,
        further_errors=(409,),
        reads=True,
    ),
    _claims_operation("ack", "Acknowledge messages", ClaimViews.acknowledge, claims.ReceiptsWithResults),
    _claims_operation("renew", "Renew claims", ClaimViews.renew, claims.Renewal),
    _claims_operation("release", "Release claims", ClaimViews.release, claims.Release),
    _claims_operation("state", "Set job states", ClaimViews.set_states, claims.States),
    _operation(
        f"GET {QUEUE}/claims", "Count claims", claims.ClaimCounts, ClaimViews.counts, "measure", further_errors=(409,)
    ),
    _operation(
        f"DELETE {QUEUE}/claims",
        "Release all claims",
        values.Done,
        ClaimViews.release_all,
        "admin",
        further_errors=(409,),
    ),
    _operation(
        f"GET {QUEUE}/size",
        "Count messages, without acknowledged ones",
        claims.QueueSize,
        ClaimViews.size,
        "measure",
        query=claims.CountQuery,
        further_errors=(409,),
    ),
    _operation(
        f"GET {QUEUE}/backlog",
        "Count backlog, by what messages wait for",
        claims.Backlog,
        ClaimViews.backlog,
        "measure",
        query=claims.CountQuery,
        further_errors=(409,),
    ),
    _operation(
        f"GET {QUEUE}/jobs",
        "List jobs, delivered messages and their workers",
        claims.Jobs,
        ClaimViews.jobs,
        "read",
        query=claims.JobsQuery,
        further_errors=(409,),
    ),
    _operation(
        "GET " + QUEUE + "/jobs/{ids}",
        "Show jobs, by id",
        jobs.JobInfos,
        ClaimViews.show_jobs,
        about="Shows what became of up to 100 jobs. `wait` waits until one of them has ended.",
        query=jobs.JobsById,
        further_errors=(409,),
        reads=True,
    ),
    _operation(
        f"POST {JOB}/cancel",
        "Cancel job",
        claims.CancelledJob,
        ClaimViews.cancel,
        about="Removes a job that waits or is delayed. A claimed job is not delivered again, and its worker gets "
        "`cancelled` when it renews the claim.",
        further_errors=(409,),
    ),
    _operation(
        f"POST {JOB}/retry",
        "Retry job now",
        claims.RetriedJob,
        ClaimViews.retry,
        about="Makes a job claimable at once that is delayed, or was released with a delay.",
        further_errors=(409,),
    ),
    _operation(
        f"GET {QUEUE}/peek",
        "Peek at messages, the oldest without acknowledged ones",
        messages.Fetched,
        ClaimViews.peek,
        "read",
        query=claims.LimitQuery,
        further_errors=(409,),
        page=True,
    ),
    _operation(
        f"GET {QUEUE}/explain",
        "Explain queue",
        queues.QueueExplanation,
        ExplanationViews.explain_queue,
        "measure",
        about="Shows what determines reads and claims of the queue, and what they get now.",
    ),
    _operation(
        "GET " + QUEUE + "/explain/{id}",
        "Explain message",
        messages.Explanation,
        ExplanationViews.explain_message,
        about="Shows why a message is not read or claimed. The answer is 200 even if the message does not exist.",
    ),
    _operation(
        f"POST {APP}/_moves",
        "Move messages to another queue",
        {202: ResponseSpec({JSON: progress.MoveState}, {"Location": "Address of the move"})},
        MoveViews.begin,
        about="Starts to move the messages that the queue has now. While the move runs, the same request returns it "
        "again. 409: the queue is being moved to another one, or its consistency level does not allow claims.",
        body=progress.NewMove,
        further_errors=(409,),
    ),
    _operation(f"GET {APP}/_moves", "List moves", progress.MoveList, MoveViews.list, "measure"),
    _operation(f"GET {MOVE}", "Show move", progress.MoveState, MoveViews.show, "measure"),
    _operation(
        f"DELETE {MOVE}",
        "Cancel move",
        progress.MoveState,
        MoveViews.cancel,
        "delete",
        about="Moved messages stay in the target. A move that has ended does not change.",
    ),
    _operation(
        f"PUT {SCHEDULE}",
        "Create or change schedule",
        _json_answers(schedules.ScheduleState, 201, 200),
        ScheduleViews.put,
        about="The schedule posts a message at certain times, even after the credential that created it has expired. "
        "409: another request is changing it. 429: the application has 1,000 schedules.",
        body=schedules.SchedulePlan,
        further_errors=(409,),
    ),
    _operation(f"GET {SCHEDULE}", "Show schedule", schedules.ScheduleState, ScheduleViews.show, "admin"),
    _operation(
        f"GET {APP}/_schedules",
        "List schedules, up to 100",
        schedules.ScheduleList,
        ScheduleViews.list,
        "admin",
        query=schedules.ScheduleQuery,
    ),
    _operation(
        f"DELETE {SCHEDULE}", "Delete schedule", values.Done, ScheduleViews.remove, "admin", further_errors=(409,)
    ),
    _operation(
        f"POST {SCHEDULE}/run",
        "Run schedule now",
        schedules.ScheduleState,
        ScheduleViews.run,
        about="Posts the schedule's message now, even if it is paused. `last` has the outcome.",
    ),
    _anonymous_operation("/", "Show service", queues.Hello, HelloView.show, 500, 503),
    _anonymous_operation("/v1", "Show API", queues.Hello, HelloView.show, 500, 503),
    _anonymous_operation(
        "/v1/openapi.json", "Get OpenAPI document", {200: ResponseSpec({JSON: {"type": "object"}})}, FileViews.document
    ),
    _anonymous_operation(
        "/docs",
        "Get API page, made from the OpenAPI document",
        {200: ResponseSpec({"text/html": ANY_TEXT}, {"Content-Security-Policy": "Allows only what is in the page"})},
        FileViews.page,
    ),
    _client_operation("queuey.js", "Get browser client", "text/javascript"),
    _client_operation("queuey.d.ts", "Get browser client types", "application/typescript"),
)
EXAMPLES = msgspec.json.decode(Path(__file__).with_name("examples.json").read_bytes(), type=list[Example])
"""One request of each operation, in an order in which they can be sent."""


def document(limits: Limits | None = None) -> dict[str, Any]:
    api = Api(
        title="Queuey",
        version=__version__,
        about=parameters.ABOUT,
        security=parameters.SECURITY,
        path_parameters=parameters.PATH_PARAMETERS,
        strict=parameters.STRICT,
        tags=tuple(TAGS),
        operations=OPERATIONS,
        errors=parameters.ERRORS,
        examples=EXAMPLES,
    )
    return openapi.make_document(api, limits or Limits())
