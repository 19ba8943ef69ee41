"""Actions about queues: they block, and run in a thread."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from queuey.api.progress import Move
from queuey.errors import QueueExists, QueueNotFound
from queuey.facades.sqs import attributes, requests
from queuey.facades.sqs.attributes import (
    COUNTS,
    MAX_NAME,
    arn_of,
    bad_value,
    keeping,
    kept_of,
    queue_of_arn,
    read_changes,
    tagged,
)
from queuey.facades.sqs.errors import SqsError, in_range, invalid, missing
from queuey.facades.sqs.requests import Asked, Result
from queuey.messages import Queue, QueueSpec
from queuey.service import QueueAccess, Service
from queuey.web.authorization import Authorization

MOST_LISTED = 1000
MOST_MOVES = 10
PAGE = 1000
MAX_SEARCHED = 10_000
"""Max queues that one request searches for sources of dead letters."""
MAX_COUNTED = 10_000
"""Max messages that are counted; more are estimated."""
_STATES = {
    "running": "RUNNING",
    "cancelling": "CANCELLING",
    "done": "COMPLETED",
    "cancelled": "CANCELLED",
    "failed": "FAILED",
}


class QueueActions:
    """Actions on queues.

    Args:
        service: The use cases.
        authorization: Checks what an access key may do.
    """

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._queues = service.queues
        self._moves = service.moves
        self._authorization = authorization
        # A network waits for many partitions at a time; one file has one writer.
        self._partitions = 4 if service.store.waits_for_network else 1

    def _enter(self, asked: Asked, name: str, action: Any, **options: Any) -> QueueAccess:  # noqa: ANN401 - passed on
        return self._authorization.enter(asked.request, asked.place(name), action, **options)

    def _open(self, asked: Asked, given: requests.OfQueue, action: Any) -> QueueAccess:  # noqa: ANN401 - as above
        return self._enter(asked, asked.where(given.queue_url)["queue"], action)

    def _enter_arn(self, asked: Asked, parameter: str, arn: str, action: Any) -> QueueAccess:  # noqa: ANN401 - as above
        """Finds the queue of an ARN, for actions that call a missing one a missing resource."""
        name = queue_of_arn(arn)
        if not name:
            raise invalid(parameter, arn, f"An ARN of a queue is needed, such as {arn_of('jobs', asked.region)}.")
        try:
            return self._enter(asked, name, action)
        except QueueNotFound:
            text = f"The resource that you specified for the {parameter} parameter doesn't exist: {arn[:200]}"
            raise SqsError("ResourceNotFoundException", text, 404) from None

    # Queues

    def create(self, asked: Asked) -> Result:
        """Creates a queue, or returns the one with these attributes."""
        given = asked.read(requests.CreateQueue)
        fifo = given.attributes.get("FifoQueue", "").lower() == "true"
        attributes.check_name(given.queue_name, fifo=fifo)
        changes = read_changes(given.attributes, fifo=fifo)
        changes.options.setdefault("ttl", attributes.RETENTION)
        self._authorization.creation(asked.request, asked.application)(given.queue_name)
        self._check_dead_letter(asked, given.queue_name, changes.options.get("dead_letter"), fifo=fifo)
        spec = replace(
            changes.spec(tagged(attributes.NOTHING, given.tags)),
            partitions=self._partitions,
            on_ack="delete",
            kind="ordered" if fifo else "plain",
        )
        try:
            queue, _ = self._queues.create(
                asked.application, given.queue_name, self._queues.claimable(spec), longest=MAX_NAME
            )
        except QueueExists as error:
            queue = error.queue
            if names := attributes.differing(queue, given.attributes):
                text = f"A queue already exists with the same name and a different value for {', '.join(names)}."
                raise SqsError("QueueNameExists", text) from None
        return {"QueueUrl": asked.url_of(queue.name)}

    def _check_dead_letter(self, asked: Asked, name: str, target: str | None, *, fifo: bool) -> None:
        """Makes sure that a queue may send its dead letters to another one."""
        if target is None:
            return
        self._authorization.require_dead_letter(asked.request, asked.application, name, target)
        try:
            queue = self._service.find(asked.application, target)
        except QueueNotFound:
            raise invalid("RedrivePolicy", target, "Dead letter target does not exist.") from None
        if attributes.is_fifo(queue) != fifo:
            raise invalid("RedrivePolicy", target, "Dead letter target must be of same type as the source.")
        allow = kept_of(queue).redrive_allow
        if allow is not None and not allow.permits(name):
            raise invalid("RedrivePolicy", target, "Its RedriveAllowPolicy does not let this queue.")

    def url(self, asked: Asked) -> Result:
        name = asked.read(requests.GetQueueUrl).queue_name
        return {"QueueUrl": asked.url_of(self._enter(asked, name, "measure").queue.name)}

    def delete(self, asked: Asked) -> Result:
        self._queues.delete(self._open(asked, asked.read(requests.OfQueue), "admin"))
        return {}

    def purge(self, asked: Asked) -> Result:
        self._queues.purge(self._open(asked, asked.read(requests.OfQueue), "admin"))
        return {}

    def list_queues(self, asked: Asked) -> Result:
        given = asked.read(requests.ListQueues)
        limit = in_range("MaxResults", given.max_results, 1, MOST_LISTED, MOST_LISTED)
        patterns = self._authorization.patterns(asked.request, asked.application, "measure")
        start = max(given.queue_name_prefix, _read_token(given.next_token))
        found, following = self._queues.list(asked.application, start=start, limit=limit, patterns=patterns)
        names = [queue.name for queue in found if queue.name.startswith(given.queue_name_prefix)]
        ends = len(names) < len(found) or not (following or "").startswith(given.queue_name_prefix)
        result: Result = {"QueueUrls": [asked.url_of(name) for name in names]} if names else {}
        return result if following is None or ends else result | {"NextToken": _token(following)}

    # Attributes and tags

    def get_attributes(self, asked: Asked) -> Result:
        given = asked.read(requests.GetQueueAttributes)
        access = self._open(asked, given, "measure")
        wanted = attributes.wanted_attributes(given.attribute_names)
        found = attributes.shown(access.queue, asked.region, wanted)
        if access.queue.ttl is None and "MessageRetentionPeriod" in wanted:
            found["MessageRetentionPeriod"] = str(self._service.limits.default_ttl)
        if counted := [name for name in wanted if name in COUNTS]:
            backlog = self._service.claims.backlog(access, MAX_COUNTED)
            found |= {name: str(COUNTS[name](backlog)) for name in counted}
        return {"Attributes": found} if found else {}

    def set_attributes(self, asked: Asked) -> Result:
        given = asked.read(requests.SetQueueAttributes)
        access = self._open(asked, given, "admin")
        queue = access.queue
        changes = read_changes(given.attributes, fifo=attributes.is_fifo(queue))
        target = changes.options.get("dead_letter")
        if attributes.is_fifo(queue) and changes.kept.get("delay", kept_of(queue).delay) < kept_of(queue).delay:
            raise bad_value("DelaySeconds", "lowered, newer messages of a FIFO queue came first")
        self._check_dead_letter(asked, queue.name, target, fifo=attributes.is_fifo(queue))
        access = self._enter(asked, queue.name, "admin", dead_letter=target)
        self._queues.update(access, lambda row: changes.spec(kept_of(row)), changes.clear, longest=MAX_NAME)
        return {}

    def tags(self, asked: Asked) -> Result:
        tags = kept_of(self._open(asked, asked.read(requests.OfQueue), "measure").queue).tags
        return {"Tags": tags} if tags else {}

    def tag(self, asked: Asked) -> Result:
        given = asked.read(requests.TagQueue)
        if not given.tags:
            raise missing("Tags")
        return self._change(asked, given, lambda row: keeping(tagged(kept_of(row), given.tags)))

    def untag(self, asked: Asked) -> Result:
        given = asked.read(requests.UntagQueue)
        if not given.tag_keys:
            raise missing("TagKeys")

        def without(row: Queue) -> QueueSpec:
            kept = kept_of(row)
            return keeping(replace(kept, tags={k: v for k, v in kept.tags.items() if k not in given.tag_keys}))

        return self._change(asked, given, without)

    def _change(self, asked: Asked, given: requests.OfQueue, change: Callable[[Queue], QueueSpec]) -> Result:
        self._queues.update(self._open(asked, given, "admin"), change)
        return {}

    def permission(self, asked: Asked) -> Result:
        """Refuses to change who may use a queue: that belongs to access keys."""
        self._open(asked, asked.read(requests.Permission), "measure")
        raise SqsError("UnsupportedOperation", f"{asked.call.action} is not supported; {attributes.NO_PERMISSIONS}")

    # Dead letters

    def sources(self, asked: Asked) -> Result:
        """Lists queues whose dead letters go to a queue."""
        given = asked.read(requests.ListSources)
        access = self._open(asked, given, "measure")
        limit = in_range("MaxResults", given.max_results, 1, MOST_LISTED, MOST_LISTED)
        names, token = self._sources(asked, access.queue.name, _read_token(given.next_token), limit)
        result: Result = {"queueUrls": [asked.url_of(name) for name in names]}
        return result if token is None else result | {"NextToken": _token(token)}

    def _sources(self, asked: Asked, name: str, start: str, limit: int) -> tuple[list[str], str | None]:
        """Returns some of these queues, and where to go on."""
        patterns = self._authorization.patterns(asked.request, asked.application, "measure")
        found: list[str] = []
        following: str | None = start
        for _ in range(MAX_SEARCHED // PAGE):
            page, following = self._queues.list(asked.application, start=following or "", limit=PAGE, patterns=patterns)
            for queue in page:
                if queue.dead_letter == name and queue.max_deliveries:
                    if len(found) == limit:
                        return found, queue.name
                    found.append(queue.name)
            if following is None:
                break
        return found, following

    def start_move(self, asked: Asked) -> Result:
        """Begins to move all messages of a queue to another one."""
        given = asked.read(requests.StartMove)
        if given.max_number_of_messages_per_second is not None:
            raise SqsError("UnsupportedOperation", "MaxNumberOfMessagesPerSecond is not supported; leave it out.")
        source = self._enter_arn(asked, "SourceArn", given.source_arn, "read").queue
        if attributes.is_fifo(source):
            raise SqsError("UnsupportedOperation", "Messages of a FIFO queue cannot be moved.")
        if given.destination_arn is None:
            target = self._enter(asked, self._only_source(asked, source.name), "send")
        else:
            target = self._enter_arn(asked, "DestinationArn", given.destination_arn, "send")
        report = self._moves.begin(self._enter(asked, source.name, "delete"), target)
        return {"TaskHandle": _token(report.id)}

    def _only_source(self, asked: Asked, name: str) -> str:
        """Returns the queue whose dead letters are in a queue, if that is one."""
        found, more = self._sources(asked, name, "", 2)
        if len(found) != 1 or more is not None:
            raise invalid("DestinationArn", "", f"{name} gets the dead letters of none or several queues: name one.")
        return found[0]

    def moves(self, asked: Asked) -> Result:
        """Lists moves of a queue's messages, the newest first."""
        given = asked.read(requests.ListMoves)
        name = self._enter_arn(asked, "SourceArn", given.source_arn, "measure").queue.name
        most = in_range("MaxResults", given.max_results, 1, MOST_MOVES, 1)
        seen = self._authorization.matching(asked.request, asked.application, "measure")
        found = [one for one in self._moves.list(asked.application, seen) if one.source == name]
        return {"Results": [_shown(one, asked.region) for one in found[:most]]}

    def cancel_move(self, asked: Asked) -> Result:
        """Cancels a move."""
        handle = asked.read(requests.CancelMove).task_handle
        name = _read_token(handle, "TaskHandle")
        may_delete = self._authorization.matching(asked.request, asked.application, "delete")
        report = self._moves.cancel(asked.application, name, may_delete)
        return {"ApproximateNumberOfMessagesMoved": report.moved}


def _shown(report: Move, region: str) -> Result:
    running = report.state in {"running", "cancelling"}
    found = {
        "TaskHandle": _token(report.id) if running else None,
        "Status": _STATES[report.state],
        "SourceArn": arn_of(report.source, region),
        "DestinationArn": arn_of(report.target, region),
        "ApproximateNumberOfMessagesMoved": report.moved,
        "ApproximateNumberOfMessagesToMove": report.total,
        "FailureReason": report.error,
        "StartedTimestamp": round(report.began * 1000),
    }
    return {name: value for name, value in found.items() if value is not None}


def _token(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode("ascii")


def _read_token(token: str | None, parameter: str = "NextToken") -> str:
    """Reads where a page begins, or the name of a move."""
    try:
        return "" if token is None else urlsafe_b64decode(token).decode()
    except ValueError:
        raise invalid(parameter, token, "It is none that was given out.") from None
