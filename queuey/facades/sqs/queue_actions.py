"""SQS actions on queues, which block and run in a thread."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from queuey.access.authorization import Authorization
from queuey.access.queue_access import QueueAccess
from queuey.api.progress import Move
from queuey.app.service import Service
from queuey.facades.sqs import attributes, requests
from queuey.facades.sqs.attributes import (
    COUNT_ATTRIBUTES,
    MAX_NAME,
    arn_of,
    bad_value,
    make_spec,
    queue_of_arn,
    read_changes,
    stored_attributes,
    with_tags,
)
from queuey.facades.sqs.errors import SqsError, check_range, invalid, missing
from queuey.facades.sqs.requests import Result, SignedRequest
from queuey.model.errors import QueueExists, QueueNotFound
from queuey.model.messages import Queue, QueueSpec

MAX_LISTED = 1000
MAX_MOVES = 10
PAGE_SIZE = 1000
MAX_SEARCHED = 10_000
"""Max queues that one request searches for the sources of a dead-letter queue."""
MAX_COUNTED = 10_000
"""Max messages counted exactly; more are estimated."""
_MOVE_STATES = {
    "running": "RUNNING",
    "cancelling": "CANCELLING",
    "done": "COMPLETED",
    "cancelled": "CANCELLED",
    "failed": "FAILED",
}


class QueueActions:
    """Actions on queues."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._queues = service.queues
        self._moves = service.moves
        self._authorization = authorization
        # Posts to several partitions of a networked store overlap; one file has one writer.
        self._partitions = 4 if service.store.waits_for_network else 1

    async def _enter(self, signed: SignedRequest, name: str, action: Any, **options: Any) -> QueueAccess:  # noqa: ANN401 - passed on
        return await self._authorization.admit(signed.request, signed.match_of_name(name), action, **options)

    async def _enter_url(self, signed: SignedRequest, call: requests.QueueParameters, action: Any) -> QueueAccess:  # noqa: ANN401 - as above
        return await self._enter(signed, signed.match_of_url(call.queue_url)["queue"], action)

    async def _enter_arn(self, signed: SignedRequest, parameter: str, arn: str, action: Any) -> QueueAccess:  # noqa: ANN401 - as above
        name = queue_of_arn(arn)
        if not name:
            raise invalid(parameter, arn, f"An ARN of a queue is needed, such as {arn_of('jobs', signed.region)}.")
        try:
            return await self._enter(signed, name, action)
        except QueueNotFound:
            text = f"The resource that you specified for the {parameter} parameter doesn't exist: {arn[:200]}"
            raise SqsError("ResourceNotFoundException", text, 404) from None

    # Queues

    async def create(self, signed: SignedRequest) -> Result:
        """Creates a queue, or returns an existing one if each given attribute equals its own.

        Tags for an existing queue are ignored. Also for it, the caller needs the right to create it, and a given
        dead-letter queue has to exist, be of the same kind and permit this one.
        """
        parameters = signed.read(requests.CreateQueue)
        fifo = parameters.attributes.get("FifoQueue", "").lower() == "true"
        attributes.check_name(parameters.queue_name, fifo=fifo)
        changes = read_changes(parameters.attributes, fifo=fifo)
        changes.options.setdefault("ttl", attributes.DEFAULT_RETENTION)
        check = await self._authorization.make_creation_check(signed.request, signed.application)
        check(parameters.queue_name)
        await self._check_dead_letter(signed, parameters.queue_name, changes.options.get("dead_letter"), fifo=fifo)
        spec = replace(
            changes.make_update(with_tags(attributes.DEFAULT_ATTRIBUTES, parameters.tags)),
            partitions=self._partitions,
            on_ack="delete",
            kind="ordered" if fifo else "plain",
        )
        try:
            queue, is_new = await self._queues.create(
                signed.application, parameters.queue_name, self._queues.make_claimable(spec), longest=MAX_NAME
            )
        except QueueExists as error:
            queue, is_new = error.queue, False
        if not is_new and (names := attributes.find_differing_attributes(queue, parameters.attributes)):
            text = f"A queue already exists with the same name and a different value for {', '.join(names)}."
            raise SqsError("QueueNameExists", text)
        return {"QueueUrl": signed.url_of(queue.name)}

    async def _check_dead_letter(self, signed: SignedRequest, name: str, target: str | None, *, fifo: bool) -> None:
        if target is None:
            return
        await self._authorization.require_dead_letter(signed.request, signed.application, name, target)
        try:
            queue = await self._service.find(signed.application, target)
        except QueueNotFound:
            raise invalid("RedrivePolicy", target, "Dead letter target does not exist.") from None
        if attributes.is_fifo(queue) != fifo:
            raise invalid("RedrivePolicy", target, "Dead letter target must be of same type as the source.")
        allow = stored_attributes(queue).redrive_allow
        if allow is not None and not allow.permits(name):
            raise invalid("RedrivePolicy", target, "Its RedriveAllowPolicy does not allow this queue.")

    async def get_url(self, signed: SignedRequest) -> Result:
        name = signed.read(requests.GetQueueUrl).queue_name
        return {"QueueUrl": signed.url_of((await self._enter(signed, name, "measure")).queue.name)}

    async def delete(self, signed: SignedRequest) -> Result:
        await self._queues.delete(await self._enter_url(signed, signed.read(requests.QueueParameters), "admin"))
        return {}

    async def purge(self, signed: SignedRequest) -> Result:
        await self._queues.purge(await self._enter_url(signed, signed.read(requests.QueueParameters), "admin"))
        return {}

    async def list_queues(self, signed: SignedRequest) -> Result:
        """Lists a page of queues that the caller may measure and whose names begin with the prefix.

        Searches from the prefix on, and ends at the first other name.
        """
        parameters = signed.read(requests.ListQueues)
        limit = check_range("MaxResults", parameters.max_results, 1, MAX_LISTED, MAX_LISTED)
        patterns = await self._authorization.patterns(signed.request, signed.application, "measure")
        start = max(parameters.queue_name_prefix, _read_token(parameters.next_token))
        queues, following = await self._queues.list(signed.application, start=start, limit=limit, patterns=patterns)
        names = [queue.name for queue in queues if queue.name.startswith(parameters.queue_name_prefix)]
        ends = len(names) < len(queues) or not (following or "").startswith(parameters.queue_name_prefix)
        result: Result = {"QueueUrls": [signed.url_of(name) for name in names]} if names else {}
        return result if following is None or ends else result | {"NextToken": _make_token(following)}

    # Attributes and tags

    async def get_attributes(self, signed: SignedRequest) -> Result:
        """Returns the requested attributes that have a value. Counts above ``MAX_COUNTED`` are estimated.

        A queue without a time to live shows the service's default as its retention.
        """
        parameters = signed.read(requests.GetQueueAttributes)
        access = await self._enter_url(signed, parameters, "measure")
        names = attributes.requested_attributes(parameters.attribute_names)
        values = attributes.attribute_values(access.queue, signed.region, names)
        if access.queue.ttl is None and "MessageRetentionPeriod" in names:
            values["MessageRetentionPeriod"] = str(self._service.limits.default_ttl)
        if counts := [name for name in names if name in COUNT_ATTRIBUTES]:
            backlog = await self._service.claims.overview.backlog(access, MAX_COUNTED)
            values |= {name: str(COUNT_ATTRIBUTES[name](backlog)) for name in counts}
        return {"Attributes": values} if values else {}

    async def set_attributes(self, signed: SignedRequest) -> Result:
        """Sets attributes and keeps all others. Refuses a lower delay for a FIFO queue: it would reorder."""
        parameters = signed.read(requests.SetQueueAttributes)
        access = await self._enter_url(signed, parameters, "admin")
        queue = access.queue
        changes = read_changes(parameters.attributes, fifo=attributes.is_fifo(queue))
        target = changes.options.get("dead_letter")
        if (
            attributes.is_fifo(queue)
            and changes.kept.get("delay", stored_attributes(queue).delay) < stored_attributes(queue).delay
        ):
            raise bad_value("DelaySeconds", "a lower delay would deliver newer messages of a FIFO queue first")
        await self._check_dead_letter(signed, queue.name, target, fifo=attributes.is_fifo(queue))
        access = await self._enter(signed, queue.name, "admin", dead_letter=target)
        await self._queues.update(
            access, lambda row: changes.make_update(stored_attributes(row)), changes.clear, longest=MAX_NAME
        )
        return {}

    async def list_tags(self, signed: SignedRequest) -> Result:
        access = await self._enter_url(signed, signed.read(requests.QueueParameters), "measure")
        tags = stored_attributes(access.queue).tags
        return {"Tags": tags} if tags else {}

    async def add_tags(self, signed: SignedRequest) -> Result:
        parameters = signed.read(requests.TagQueue)
        if not parameters.tags:
            raise missing("Tags")
        return await self._update_spec(
            signed, parameters, lambda row: make_spec(with_tags(stored_attributes(row), parameters.tags))
        )

    async def remove_tags(self, signed: SignedRequest) -> Result:
        """Removes tags by key, ignoring keys that the queue does not have; refuses a request without keys.

        Needs ``admin``.
        """
        parameters = signed.read(requests.UntagQueue)
        if not parameters.tag_keys:
            raise missing("TagKeys")

        def without(row: Queue) -> QueueSpec:
            kept = stored_attributes(row)
            return make_spec(replace(kept, tags={k: v for k, v in kept.tags.items() if k not in parameters.tag_keys}))

        return await self._update_spec(signed, parameters, without)

    async def _update_spec(
        self, signed: SignedRequest, call: requests.QueueParameters, change: Callable[[Queue], QueueSpec]
    ) -> Result:
        await self._queues.update(await self._enter_url(signed, call, "admin"), change)
        return {}

    async def refuse_permission_change(self, signed: SignedRequest) -> Result:
        """Refuses AddPermission and RemovePermission: access keys decide who may use a queue.

        A missing or hidden queue has its own error first.
        """
        await self._enter_url(signed, signed.read(requests.Permission), "measure")
        raise SqsError(
            "UnsupportedOperation", f"{signed.call.action} is not supported; {attributes.NO_PERMISSIONS_TEXT}"
        )

    # Dead letters

    async def list_sources(self, signed: SignedRequest) -> Result:
        """Lists a page of the queues whose dead letters go to a queue, and which the caller may measure.

        A page may be short or empty and yet have a token, as one request searches at most :data:`MAX_SEARCHED` queues.
        """
        parameters = signed.read(requests.ListSources)
        access = await self._enter_url(signed, parameters, "measure")
        limit = check_range("MaxResults", parameters.max_results, 1, MAX_LISTED, MAX_LISTED)
        names, token = await self._find_sources(signed, access.queue.name, _read_token(parameters.next_token), limit)
        result: Result = {"queueUrls": [signed.url_of(name) for name in names]}
        return result if token is None else result | {"NextToken": _make_token(token)}

    async def _find_sources(
        self, signed: SignedRequest, name: str, start: str, limit: int
    ) -> tuple[list[str], str | None]:
        """Returns a page of queues with this dead-letter queue and a maximum number of deliveries.

        Also returns the name that the next page begins at, or None at the end. Searches at most :data:`MAX_SEARCHED`
        queues, so the page may be short.
        """
        patterns = await self._authorization.patterns(signed.request, signed.application, "measure")
        names: list[str] = []
        following: str | None = start
        for _ in range(MAX_SEARCHED // PAGE_SIZE):
            page, following = await self._queues.list(
                signed.application, start=following or "", limit=PAGE_SIZE, patterns=patterns
            )
            for queue in page:
                if queue.dead_letter == name and queue.max_deliveries:
                    if len(names) == limit:
                        return names, queue.name
                    names.append(queue.name)
            if following is None:
                break
        return names, following

    async def start_move(self, signed: SignedRequest) -> Result:
        """Starts to move all messages of a dead-letter queue to the destination, or else to its only source queue.

        Refuses FIFO queues, and a limit of the rate. Needs ``read`` and ``delete`` with the source, and ``send`` with
        the destination.
        """
        parameters = signed.read(requests.StartMove)
        if parameters.max_number_of_messages_per_second is not None:
            raise SqsError("UnsupportedOperation", "MaxNumberOfMessagesPerSecond is not supported; leave it out.")
        source = (await self._enter_arn(signed, "SourceArn", parameters.source_arn, "read")).queue
        if attributes.is_fifo(source):
            raise SqsError("UnsupportedOperation", "Messages of a FIFO queue cannot be moved.")
        if parameters.destination_arn is None:
            target = await self._enter(signed, await self._find_only_source(signed, source.name), "send")
        else:
            target = await self._enter_arn(signed, "DestinationArn", parameters.destination_arn, "send")
        report = await self._moves.begin(await self._enter(signed, source.name, "delete"), target)
        return {"TaskHandle": _make_token(report.id)}

    async def _find_only_source(self, signed: SignedRequest, name: str) -> str:
        names, next_name = await self._find_sources(signed, name, "", 2)
        if len(names) != 1 or next_name is not None:
            raise invalid("DestinationArn", "", f"{name} has no source queue, or several: name the destination.")
        return names[0]

    async def list_moves(self, signed: SignedRequest) -> Result:
        """Lists moves out of a queue, the newest first; only one by default. Only a running move has a handle."""
        parameters = signed.read(requests.ListMoves)
        name = (await self._enter_arn(signed, "SourceArn", parameters.source_arn, "measure")).queue.name
        limit = check_range("MaxResults", parameters.max_results, 1, MAX_MOVES, 1)
        may_see = await self._authorization.make_name_test(signed.request, signed.application, "measure")
        moves = [move for move in await self._moves.list(signed.application, may_see) if move.source == name]
        return {"Results": [_describe_move(move, signed.region) for move in moves[:limit]]}

    async def cancel_move(self, signed: SignedRequest) -> Result:
        """Requests the end of a move, and returns how many messages it has moved. Needs ``delete`` with the source.

        Succeeds if the move has ended.
        """
        handle = signed.read(requests.CancelMessageMoveTask).task_handle
        name = _read_token(handle, "TaskHandle")
        may_delete = await self._authorization.make_name_test(signed.request, signed.application, "delete")
        report = await self._moves.cancel(signed.application, name, may_delete)
        return {"ApproximateNumberOfMessagesMoved": report.moved}


def _describe_move(report: Move, region: str) -> Result:
    running = report.state in {"running", "cancelling"}
    result = {
        "TaskHandle": _make_token(report.id) if running else None,
        "Status": _MOVE_STATES[report.state],
        "SourceArn": arn_of(report.source, region),
        "DestinationArn": arn_of(report.target, region),
        "ApproximateNumberOfMessagesMoved": report.moved,
        "ApproximateNumberOfMessagesToMove": report.total,
        "FailureReason": report.error,
        "StartedTimestamp": round(report.began * 1000),
    }
    return {name: value for name, value in result.items() if value is not None}


def _make_token(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode("ascii")


def _read_token(token: str | None, parameter: str = "NextToken") -> str:
    try:
        return "" if token is None else urlsafe_b64decode(token).decode()
    except ValueError:
        raise invalid(parameter, token, "It is not a token of this service.") from None
