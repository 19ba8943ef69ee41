"""The facade of SoftLayer MQ: queues of bytes, fetched one by one, known by an id for life."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from queuey import ids
from queuey.claims import ClaimReceipt
from queuey.errors import InvalidRequest, NotAllowed, QueueNotFound
from queuey.messages import MAX_TTL, Location, Message, PostResult, Queue, QueueSpec
from queuey.service import Draft, HandedOut, QueueAccess
from queuey.service.reading import SHORT_BYTES
from queuey.settings.facades import LONGEST_BODY
from queuey.web.endpoint import Begun, Hot, Match, WouldBlock
from queuey.web.errors import NoSuchResource
from queuey.web.facades.facade import Facade, Mount, OpenFacade, Resource
from queuey.web.requests import read_body
from queuey.web.responses import TEXT, Environ, Header, Response, text_response
from queuey.web.v1.messages import text_or_bytes
from queuey.web.v1.post_keys import REPLAYED, read_key

RETRY_AFTER: Header = ("Retry-After", "10")
"""What the original says, always."""
_ID = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})(?:-([1-9][0-9]{0,2}))?")
_ANY_ID = "[a-z0-9-]+"


class MqFacade(OpenFacade):
    """Six calls."""

    spec = QueueSpec(partitions=1, ttl=MAX_TTL, on_ack="delete")
    short_reads = frozenset({("GET", "mq.messages")})

    def __init__(self, mount: Mount) -> None:
        super().__init__(mount)
        self._redelivery = mount.settings.mq.redelivery
        self._messages = self._service.messages
        self._claims = self._service.claims
        self._core = self._service.core
        self._queues = self._service.queues

    def resources(self) -> list[Resource]:
        """See the base class."""
        queue = "/{queue:[^/]+}"
        return [
            Resource(
                "mq.messages",
                f"{queue}/messages",
                {"GET": self.fetch, "POST": self.post},
                {"GET": self.begin_fetch, "POST": self.begin_post},
            ),
            Resource(
                "mq.message",
                f"{queue}/messages/{{id:{_ANY_ID}}}",
                {"DELETE": self.delete},
                {"DELETE": self.begin_delete},
            ),
            Resource("mq.queue", queue, {"GET": self.show, "PUT": self.create, "DELETE": self.drop}),
        ]

    def find_hot(self, path: str) -> Hot | None:
        """See the base class."""
        _, queue, *rest = path.split("/", 4)
        if not queue or not rest or rest[0] != "messages" or len(rest) > 2:  # noqa: PLR2004 - messages and an id
            return None
        where = Facade.where(self, {"queue": queue})
        if len(rest) == 1:
            return Hot("mq.messages", where)
        return Hot("mq.message", where | {"id": rest[1]}) if _ID.fullmatch(rest[1]) else None

    def sign(self, environ: Environ) -> None:
        """See the base class. Bodies are bytes, however they are encoded."""
        super().sign(environ)
        environ.pop("HTTP_CONTENT_ENCODING", None)

    def error_response(self, error: Exception, status: int, text: str) -> Response:
        """See the base class. The original has three codes for what fails."""
        if status in {429, 500, 503}:
            return Response(503, f"{text}\n".encode(), TEXT, RETRY_AFTER)
        if isinstance(error, NotAllowed):
            return text_response(f"{text}\n", 403)
        return text_response(f"{text}\n", 400 if isinstance(error, InvalidRequest) else 404)

    def refuse(self, reason: str) -> NoSuchResource:
        """See the base class."""
        return NoSuchResource(f"No queue has this name: {reason}.")

    # Queues

    def show(self, environ: Environ, match: Match) -> Response:
        """Says whether there is a queue."""
        self.find(environ, match, "measure")
        return Response(200, b"")

    def create(self, environ: Environ, match: Match) -> Response:
        """Makes a queue, if there is none of this name."""
        self.make(environ, match)
        return Response(201, b"")

    def drop(self, environ: Environ, match: Match) -> Response:
        """Deletes a queue with its messages, if there is one."""
        try:
            self._queues.delete(self.find(environ, match, "admin"))
        except QueueNotFound:
            self.where(match)
        return Response(200, b"")

    # Messages

    def post(self, environ: Environ, match: Match) -> Response:
        """Stores a message; a queue is made that is not there."""
        self.where(match)
        draft, key = self._draft(environ), read_key(environ)
        return self.use(environ, match, "send", partial(self._post, draft, key))

    def begin_post(self, environ: Environ, match: Match) -> Begun:
        """Is ``post`` without blocking."""
        queue = self._authorization.enter_at_once(environ, match, "send")
        return self._messages.post(queue, [self._draft(environ)], key=read_key(environ)), _posted

    def _post(self, draft: Draft, key: str | None, access: QueueAccess) -> Response:
        return _posted(self._core.use(access, partial(self._messages.post, drafts=[draft], key=key)))

    def _draft(self, environ: Environ) -> Draft:
        return Draft(text_or_bytes(read_body(environ, LONGEST_BODY)))

    def fetch(self, environ: Environ, match: Match) -> Response:
        """Claims a message; 204 if there is none."""
        try:
            access = self.find(environ, match, "work")
            return _fetched(self._claims.claim_patiently(access, limit=1, ttl=self._redelivery))
        except QueueNotFound:
            return Response(204, b"")

    def begin_fetch(self, environ: Environ, match: Match) -> Begun:
        """Is ``fetch`` without blocking."""
        queue = self._authorization.enter_at_once(environ, match, "work")
        call = self._claims.claim(queue, limit=1, ttl=self._redelivery, max_bytes=SHORT_BYTES)
        return call, _fetched

    def delete(self, environ: Environ, match: Match) -> Response:
        """Acknowledges a message, whichever caller has fetched it, and whether it is there or not."""
        receipt = _receipt(match["id"])
        try:
            access = self.find(environ, match, "work")
            if receipt is not None and receipt.partition <= access.queue.partitions:
                self._core.use(access, lambda queue: self._claims.acknowledge(queue, [receipt]))
        except QueueNotFound:
            self.where(match)
        return Response(202, b"")

    def begin_delete(self, environ: Environ, match: Match) -> Begun:
        """Is ``delete`` without blocking."""
        receipt = _receipt(match["id"])
        queue: Queue = self._authorization.enter_at_once(environ, match, "work")
        if receipt is None or receipt.partition > queue.partitions:
            raise WouldBlock
        return self._claims.acknowledge(queue, [receipt]), lambda _: Response(202, b"")


def message_id(location: Location) -> str:
    """Returns the id of a message: its own as a UUID, and the partition if that is not the first."""
    partition, position = location
    digits = ids.to_hex(position)
    text = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return text if partition == 1 else f"{text}-{partition}"


def _receipt(text: str) -> ClaimReceipt | None:
    """Reads the id of a message; None: no message has this one."""
    match = _ID.fullmatch(text)
    return None if match is None else ClaimReceipt(int(match[2] or 1), *ids.parse_id(match[1]))


def _posted(result: PostResult) -> Response:
    [location] = result.locations
    named: Header = ("X-Message-Id", message_id(location))
    return Response(201, b"", named, REPLAYED) if result.replayed else Response(201, b"", named)


def _fetched(claimed: Sequence[HandedOut]) -> Response:
    return _sent(claimed[0].message) if claimed else Response(204, b"")


def _sent(message: Message) -> Response:
    """Answers with a body as it was posted; browsers must not interpret what others have written."""
    text = isinstance(message.body, str)
    kind: Header = TEXT if text else ("Content-Type", "application/octet-stream")
    return Response(
        200,
        message.body.encode() if isinstance(message.body, str) else message.body,
        kind,
        ("X-Content-Type-Options", "nosniff"),
        ("X-Message-Id", message_id((message.partition, message.position))),
    )
