"""The facade of EmoDB's queue service: plain queues under ``/queue/1``, dedup queues under ``/dedupq/1``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from queuey.access.queue_access import QueueAccess
from queuey.api.claims import MAX_COUNTED
from queuey.claims.claims import ClaimUseCases
from queuey.claims.log.log_requests import ClaimUndecided
from queuey.claims.rules.receipts import ClaimReceipt
from queuey.facades.emodb import errors, names, requests
from queuey.facades.emodb.names import MAX_QUEUE_NAME, Kind, MessageIds, is_queue_of_kind, queue_name
from queuey.facades.emodb.requests import check_partitioned, read_count_limit, read_limit, read_ttl
from queuey.facades.facade import Facade, Resource, Setup
from queuey.messages.posts import Draft
from queuey.messages.range_reads import MAX_SHORT_BYTES
from queuey.model.errors import MoveNotFound, NotAllowed, QueueNotFound, TooManyClaims
from queuey.model.messages import Message, Queue, QueueSpec
from queuey.model.rights import Action, matches
from queuey.web.endpoint import Match, View
from queuey.web.requests import Request, parse_form
from queuey.web.responses import JSON, Response, json_response

MAX_CLAIMED = 20_000
"""Max live claims of a queue; polls of a queue at the limit return nothing."""
MAX_CACHED_COUNTS = 4096

NEW_QUEUE_PARTITIONS = 8
DEFAULT_TTL = 14 * 86_400
MAX_IDS = 1000
"""Max ids acknowledged or renewed in one call of the use case."""
KINDS: dict[str, Kind] = {"queue": "plain", "dedupq": "dedup"}
BASE = "/{base:queue|dedupq}/1"
QUEUE = BASE + "/{queue:[^/]+}"
PATH_PREFIXES = tuple(f"/{base}/1/" for base in KINDS)
SUCCESS = b'{"success":true}'
EMPTY_LIST = b"[]"
ZERO = b"0"


class OpenClaims:
    """Limits the live claims of each queue.

    A queue's claims are counted at its first poll in this process, and again when the sum of the count and the claims
    made here since reaches the limit. Claims that have ended since are not subtracted. So the limit is exact for a
    queue that one process polls. With several, each may exceed it by the claims that others made since its count.
    """

    def __init__(self, claims: ClaimUseCases) -> None:
        self._claims = claims
        self._lock = Lock()
        self._counts: OrderedDict[int, int] = OrderedDict()

    def has_room(self, qid: int) -> bool:
        """Returns whether the cached number of claims allows more; False without one. Never blocks."""
        return self._counts.get(qid, MAX_CLAIMED) < MAX_CLAIMED

    async def is_full(self, access: QueueAccess) -> bool:
        qid = access.queue.qid
        if not self.has_room(qid):
            self._record(qid, (await self._claims.overview.count_claims(access)).claimed)
        return not self.has_room(qid)

    def add(self, qid: int, count: int) -> None:
        if count:
            self._record(qid, self._counts.get(qid, 0) + count)

    def _record(self, qid: int, number: int) -> None:
        with self._lock:
            self._counts[qid] = number
            self._counts.move_to_end(qid)
            while len(self._counts) > MAX_CACHED_COUNTS:
                self._counts.popitem(last=False)


class EmodbFacade(Facade):
    """The calls of EmoDB's queue service. A missing queue behaves as an empty one.

    The caller's key comes from the header ``X-BV-API-Key``, or else from the query. Any other credential is dropped. It
    has the paths under :data:`PATH_PREFIXES` and ``/ping``, whatever its prefix.
    """

    max_name_length = MAX_QUEUE_NAME

    def __init__(self, setup: Setup, prefix: str) -> None:
        super().__init__(setup, prefix)
        self._limits = self._service.limits
        self._messages = self._service.messages
        self._claims = self._service.claims
        self._moves = self._service.moves
        self.open_claims = OpenClaims(self._claims)

    def resources(self) -> list[Resource]:
        return [
            Resource("emodb.ping", "/ping", {"GET": _answer_ping}),
            Resource("emodb.batches", f"{BASE}/_sendbatch", {"POST": self.send_batches}),
            Resource("emodb.moves", f"{BASE}/_move", {"POST": self.move}),
            Resource("emodb.move", f"{BASE}/_move/{{reference}}", {"GET": self.show_move}),
            Resource("emodb.send", f"{QUEUE}/send", {"POST": self.send}),
            Resource("emodb.batch", f"{QUEUE}/sendbatch", {"POST": self.send_batch}),
            Resource("emodb.poll", f"{QUEUE}/poll", {"GET": View(self.poll, reads_query=True, ends_with_client=True)}),
            Resource("emodb.peek", f"{QUEUE}/peek", {"GET": View(self.peek, reads_query=True, ends_with_client=True)}),
            Resource("emodb.ack", f"{QUEUE}/ack", {"POST": self.acknowledge}),
            Resource("emodb.renew", f"{QUEUE}/renew", {"POST": self.renew}),
            Resource("emodb.size", f"{QUEUE}/size", {"GET": self.size}),
            Resource("emodb.uncached_size", f"{QUEUE}/uncached_size", {"GET": self.size}),
            Resource("emodb.claimcount", f"{QUEUE}/claimcount", {"GET": self.count_claims}),
            Resource("emodb.unclaimall", f"{QUEUE}/unclaimall", {"POST": self.unclaim_all}),
            Resource("emodb.queue", QUEUE, {"DELETE": self.purge}),
        ]

    def set_credential(self, request: Request) -> None:
        # Takes the key from the header ``X-BV-API-Key``, or else from the query. Drops any other credential, and a key
        # with ``;``, because it could add a second credential.
        key = request.headers.get("x-bv-api-key")
        if key is None and "APIKey=" in request.query:
            key = parse_form(request.query, "query").get("APIKey")
        request.headers.pop("authorization", None)
        if key and ";" not in key:
            request.headers["authorization"] = f"Application {key}"

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        return errors.emodb_error(error, status, text)

    def owns(self, path: str) -> bool:
        return f"{path}/".startswith((*PATH_PREFIXES, "/ping/"))

    def queue_match(self, match: Match) -> Match:
        return {"app": self.application, "queue": queue_name(match["queue"], KINDS[match["base"]])}

    def spec_of(self, match: Match) -> QueueSpec:
        return QueueSpec(partitions=NEW_QUEUE_PARTITIONS, ttl=DEFAULT_TTL, kind=KINDS[match["base"]])

    # Authorization

    async def _admit(self, request: Request, match: Match, action: Action) -> QueueAccess | None:
        """Authorizes the caller for an action on a queue. Returns None if the queue does not exist.

        Raises:
            NotAuthenticated, NotAllowed: The caller lacks the right, even if the queue does not exist.
            BadArgument: The queue's name is not valid.
        """
        await self._require_key(request)
        where = self.queue_match(match)
        try:
            return await self._authorization.admit(request, where, action)
        except QueueNotFound:
            if not any(matches(pattern, where["queue"]) for pattern in await self._find_patterns(request, action)):
                raise NotAllowed("The credential is limited to other queues.") from None
            return None

    async def _find_patterns(self, request: Request, action: Action) -> Sequence[str]:
        return await self._authorization.patterns(request, self.application, action)

    async def _require_key(self, request: Request) -> None:
        if (await self._authorization.identify(request)).is_anonymous:
            raise NotAllowed(anonymous=True)

    # Sending

    async def send(self, request: Request, match: Match) -> Response:
        await self._admit(request, match, "send")
        draft = await request.parse_body(partial(requests.read_message, request, self._limits))
        return await self._send(request, match, [draft])

    async def send_batch(self, request: Request, match: Match) -> Response:
        await self._admit(request, match, "send")
        drafts = await request.parse_body(partial(requests.read_batch, request, self._limits))
        return await self._send(request, match, drafts)

    async def send_batches(self, request: Request, match: Match) -> Response:
        """Stores messages in several queues, one after the other, if the caller may send to all of them.

        Creates missing queues. If a queue fails, messages of earlier ones stay.

        Raises:
            RefusedQueue: The caller may not send to a queue.
        """
        await self._require_key(request)
        batches = await request.parse_body(partial(requests.read_batches, request, self._limits))
        for name in batches:
            try:
                await self._admit(request, {**match, "queue": name}, "send")
            except NotAllowed:
                raise errors.RefusedQueue(name) from None
        for name, drafts in batches.items():
            await self._send(request, {**match, "queue": name}, drafts)
        return _json(SUCCESS)

    async def _send(self, request: Request, match: Match, drafts: Sequence[Draft]) -> Response:
        for start in range(0, len(drafts), self._limits.max_batch):
            batch = drafts[start : start + self._limits.max_batch]
            await self.apply(request, match, "send", partial(self._messages.post, drafts=batch))
        return _json(SUCCESS)

    # Claims

    async def poll(self, request: Request, match: Match) -> Response:
        """Claims messages, at most ``MAX_SHORT_BYTES`` in all; ``ttl=0`` only shows them.

        Answers an empty list if the queue does not exist or, unless ``ttl=0``, has too many claims.
        """
        access = await self._admit(request, match, "work")
        query = _read_query(request)
        ttl, limit = read_ttl(query), read_limit(query)
        if access is None:
            return _json(EMPTY_LIST)
        if ttl and not self.open_claims.has_room(access.queue.qid):
            with suppress(QueueNotFound):
                if await self.open_claims.is_full(access):
                    return _json(EMPTY_LIST)

        async def poll(queue: Queue) -> Response:
            claimed = await self._claims.claim(queue, limit=limit, ttl=ttl, max_bytes=MAX_SHORT_BYTES, gather=True)
            self.open_claims.add(queue.qid, sum(delivery.expires > 0 for delivery in claimed))
            return _messages_response(queue, [delivery.message for delivery in claimed])

        await request.share.reserve(MAX_SHORT_BYTES)
        with suppress(QueueNotFound, TooManyClaims, ClaimUndecided):
            return await access.apply(poll)
        return _json(EMPTY_LIST)

    async def peek(self, request: Request, match: Match) -> Response:
        access = await self._admit(request, match, "work")
        limit = read_limit(_read_query(request))
        if access is not None:
            await request.share.reserve(self._limits.page_bytes)
            with suppress(QueueNotFound):
                return _messages_response(access.queue, await self._claims.overview.peek(access, limit))
        return _json(EMPTY_LIST)

    async def acknowledge(self, request: Request, match: Match) -> Response:
        access = await self._admit(request, match, "work")
        _read_query(request)
        return await self._settle(request, match, access, self._claims.acknowledge)

    async def renew(self, request: Request, match: Match) -> Response:
        """Extends claims to at least ``ttl`` seconds from now, or ends them with ``ttl=0``.

        Succeeds if they do not exist.
        """
        access = await self._admit(request, match, "work")
        ttl = read_ttl(_read_query(request))
        return await self._settle(request, match, access, partial(self._claims.renew, ttl=ttl))

    async def _settle(
        self,
        request: Request,
        match: Match,
        access: QueueAccess | None,
        settle: Callable[[Queue, Sequence[ClaimReceipt]], Coroutine[Any, Any, object]],
    ) -> Response:
        texts = await request.parse_body(partial(requests.read_ids, request, self._limits))
        ids = MessageIds(self.queue_match(match)["queue"])

        async def settle_all(queue: Queue) -> None:
            receipts = await request.parse_body(partial(ids.read, texts, queue.partitions))
            for start in range(0, len(receipts), MAX_IDS):
                await settle(queue, receipts[start : start + MAX_IDS])

        if access is None:
            ids.read(texts, 0)
        else:
            with suppress(QueueNotFound):
                await access.apply(settle_all)
        return _json(SUCCESS)

    # Whole queues

    async def size(self, request: Request, match: Match) -> Response:
        """Answers with the number of unfinished messages that are due, counted exactly up to the limit in the query."""
        access = await self._admit(request, match, "measure")
        limit = read_count_limit(_read_query(request), MAX_COUNTED)
        if access is not None:
            with suppress(QueueNotFound):
                return json_response((await self._claims.overview.size(access, limit)).size)
        return _json(ZERO)

    async def count_claims(self, request: Request, match: Match) -> Response:
        access = await self._admit(request, match, "measure")
        _read_query(request)
        if access is not None:
            with suppress(QueueNotFound):
                return json_response((await self._claims.overview.count_claims(access)).claimed)
        return _json(ZERO)

    async def unclaim_all(self, request: Request, match: Match) -> Response:
        """Ends all claims of a queue, no matter whose they are. Needs only the right ``work``."""
        access = await self._admit(request, match, "work")
        _read_query(request)
        if access is not None:
            with suppress(QueueNotFound):
                await access.apply(self._claims.release_all)
        return _json(SUCCESS)

    async def purge(self, request: Request, match: Match) -> Response:
        """Removes all messages; succeeds if the queue does not exist. Needs both rights, ``work`` and ``delete``."""
        await self._admit(request, match, "work")
        access = await self._admit(request, match, "delete")
        _read_query(request)
        if access is not None:
            with suppress(QueueNotFound):
                await self._service.queues.purge(access)
        return _json(SUCCESS)

    # Moves

    async def move(self, request: Request, match: Match) -> Response:
        """Starts to move all messages of a queue to another one, and answers with the move's id.

        Creates missing queues.
        """
        source, target = await self._check_move(request, match)

        async def begin(_target: Queue) -> Response:
            from_source = await self._authorization.admit(request, self.queue_match(source), "delete")
            to_target = await self._authorization.admit(request, self.queue_match(target), "send")
            move = await self._moves.begin(from_source, to_target)
            return json_response({"id": names.reference_of(move.id)})

        return await self.apply(request, target, "send", begin)

    async def _check_move(self, request: Request, match: Match) -> tuple[Match, Match]:
        """Authorizes the caller for a move, and creates a missing source. Returns source and target.

        Needs the rights to acknowledge and delete in the source, and to send to the target.

        Raises:
            BadArgument: A name is missing or not valid, or both are the same.
        """
        await self._require_key(request)
        query = _read_query(request)
        ends = [query.get(name) for name in ("from", "to")]
        for name, value in zip(("from", "to"), ends, strict=True):
            if not value:
                raise errors.BadArgument(f"Missing required parameter: {name}")
        source, target = ({**match, "queue": name or ""} for name in ends)
        await self._admit(request, source, "work")
        access = await self._admit(request, source, "delete")
        await self._admit(request, target, "send")
        if ends[0] == ends[1]:
            raise errors.BadArgument("cannot move queue to itself")
        if access is None:
            await self.create_queue_unchecked(source)
        return source, target

    async def show_move(self, request: Request, match: Match) -> Response:
        if not any([await self._may_on_some_queue(request, action) for action in ("measure", "send", "delete")]):
            raise NotAllowed
        move = names.parse_move_reference(match["reference"])
        if move is not None:
            with suppress(MoveNotFound):
                is_seen = partial(is_queue_of_kind, kind=KINDS[match["base"]])
                report = await self._moves.show(self.application, move, is_seen)
                return json_response(names.describe_move(report))
        raise MoveNotFound(match["reference"])

    async def _may_on_some_queue(self, request: Request, action: Action) -> bool:
        try:
            return bool(await self._find_patterns(request, action))
        except NotAllowed:
            return False


async def _answer_ping(_request: Request, _match: Match) -> Response:
    return Response(200, b"pong", errors.TEXT)


def _read_query(request: Request) -> dict[str, str]:
    query = parse_form(request.query, "query")
    check_partitioned(query)
    return query


def _json(body: bytes) -> Response:
    return Response(200, body, JSON)


def _messages_response(queue: Queue, messages: Sequence[Message]) -> Response:
    return Response(200, requests.write_messages(messages, MessageIds(queue.name)), JSON)
