"""The facade of SoftLayer MQ: queues of byte messages, which are fetched one at a time and deleted by id."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial

from queuey.claims.log.log_requests import ClaimUndecided
from queuey.claims.rules.receipts import ClaimReceipt
from queuey.facades.facade import OpenFacade, Resource, Setup, message_id
from queuey.facades.settings import MAX_FACADE_BODY
from queuey.messages.message_views import text_or_bytes
from queuey.messages.posts import Draft
from queuey.messages.range_reads import MAX_SHORT_BYTES
from queuey.model import ids
from queuey.model.errors import InvalidRequest, NotAllowed, QueueNotFound
from queuey.model.messages import MAX_TTL, Message, PostResult, Queue, QueueSpec
from queuey.web.endpoint import Match, View
from queuey.web.errors import NoSuchResource
from queuey.web.parameters import REPLAYED_HEADER, read_key
from queuey.web.requests import Request, read_body
from queuey.web.responses import TEXT, Header, Response, text_response

RETRY_AFTER: Header = ("Retry-After", "10")
"""Header of answers with status 503; the original always sends this value."""
_ID = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})(?:-([1-9][0-9]{0,2}))?")
_ANY_ID = "[a-z0-9-]+"


class MqFacade(OpenFacade):
    """The calls of SoftLayer MQ.

    Errors get 503 for overload and defects, 403 for missing rights, 400 for invalid requests, and 404 for all others.
    The header ``Content-Encoding`` of a request is ignored: the body is stored as it is.
    """

    spec = QueueSpec(partitions=1, ttl=MAX_TTL, on_ack="delete")

    def __init__(self, setup: Setup, prefix: str) -> None:
        super().__init__(setup, prefix)
        self._redelivery = setup.settings.mq.redelivery
        self._messages = self._service.messages
        self._claims = self._service.claims
        self._queues = self._service.queues

    def resources(self) -> list[Resource]:
        queue = "/{queue:[^/]+}"
        return [
            Resource(
                "mq.messages",
                f"{queue}/messages",
                {"GET": View(self.fetch, reads_query=True, ends_with_client=True), "POST": self.post},
            ),
            Resource("mq.message", f"{queue}/messages/{{id:{_ANY_ID}}}", {"DELETE": self.delete}),
            Resource("mq.queue", queue, {"GET": self.show, "PUT": self.create, "DELETE": self.delete_queue}),
        ]

    def set_credential(self, request: Request) -> None:
        super().set_credential(request)
        request.headers.pop("content-encoding", None)

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        # Answers as the original does.
        if status in {429, 500, 503}:
            return Response(503, f"{text}\n".encode(), TEXT, RETRY_AFTER)
        if isinstance(error, NotAllowed):
            return text_response(f"{text}\n", 403)
        return text_response(f"{text}\n", 400 if isinstance(error, InvalidRequest) else 404)

    def make_bad_name_error(self, reason: str) -> NoSuchResource:
        return NoSuchResource(f"No queue has this name: {reason}.")

    # Queues

    async def show(self, request: Request, match: Match) -> Response:
        await self._authorization.admit(request, self.queue_match(match), "measure")
        return Response(200, b"")

    async def create(self, request: Request, match: Match) -> Response:
        await self.create_queue(request, match)
        return Response(201, b"")

    async def delete_queue(self, request: Request, match: Match) -> Response:
        where = self.queue_match(match)
        with suppress(QueueNotFound):
            await self._queues.delete(await self._authorization.admit(request, where, "admin"))
        return Response(200, b"")

    # Messages

    async def post(self, request: Request, match: Match) -> Response:
        """Stores a message; creates a missing queue. Answers its id in ``X-Message-Id``.

        A repeated idempotency key stores nothing, and the answer is marked as a replay.
        """
        self.queue_match(match)
        draft = Draft(text_or_bytes(read_body(request, MAX_FACADE_BODY)))
        key = request.headers.get("idempotency-key")
        post = partial(self._messages.post, drafts=[draft], key=None if key is None else read_key(key))
        return _answer_posted(await self.apply(request, match, "send", post))

    async def fetch(self, request: Request, match: Match) -> Response:
        """Claims a message for the seconds of the setting ``redelivery``, without waiting for one.

        Answers 204 if the queue is empty or does not exist.
        """
        claim = partial(self._claims.claim, limit=1, ttl=self._redelivery, max_bytes=MAX_SHORT_BYTES)
        try:
            access = await self._authorization.admit(request, self.queue_match(match), "work")
            await request.share.reserve(MAX_SHORT_BYTES)
            claimed = await access.apply(claim)
        except (QueueNotFound, ClaimUndecided):
            claimed = []
        return _answer_message(claimed[0].message) if claimed else Response(204, b"")

    async def delete(self, request: Request, match: Match) -> Response:
        """Acknowledges a message, no matter who fetched it.

        Succeeds if the message or its queue does not exist, or the id is malformed.
        """
        where, receipt = self.queue_match(match), _read_receipt(match["id"])

        async def acknowledge(queue: Queue) -> None:
            if receipt is not None and receipt.partition <= queue.partitions:
                await self._claims.acknowledge(queue, [receipt])

        with suppress(QueueNotFound):
            await (await self._authorization.admit(request, where, "work")).apply(acknowledge)
        return Response(202, b"")


def _read_receipt(text: str) -> ClaimReceipt | None:
    match = _ID.fullmatch(text)
    return None if match is None else ClaimReceipt(int(match[2] or 1), *ids.parse_id(match[1]))


def _answer_posted(result: PostResult) -> Response:
    [location] = result.locations
    id_header: Header = ("X-Message-Id", message_id(location))
    return Response(201, b"", id_header, REPLAYED_HEADER) if result.replayed else Response(201, b"", id_header)


def _answer_message(message: Message) -> Response:
    # nosniff: browsers must not interpret a body that somebody else posted.
    text = isinstance(message.body, str)
    kind: Header = TEXT if text else ("Content-Type", "application/octet-stream")
    return Response(
        200,
        message.body.encode() if isinstance(message.body, str) else message.body,
        kind,
        ("X-Content-Type-Options", "nosniff"),
        ("X-Message-Id", message_id((message.partition, message.position))),
    )
