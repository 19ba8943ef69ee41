"""The facade of EmoDB's queue service: plain queues under ``/queue/1``, dedup queues under ``/dedupq/1``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from queuey.access import Action, matches
from queuey.claims import ClaimReceipt
from queuey.errors import MoveNotFound, NotAllowed, QueueNotFound, TooManyClaims
from queuey.messages import Message, Queue, QueueSpec
from queuey.service import Draft, HandedOut, QueueAccess
from queuey.service.reading import SHORT_BYTES
from queuey.web.endpoint import Begun, Hot, Match, WouldBlock
from queuey.web.facades.emodb import errors, moves, payloads
from queuey.web.facades.emodb.message_ids import MessageIds
from queuey.web.facades.emodb.names import LONGEST_QUEUE, Kind, is_of, queue_name
from queuey.web.facades.emodb.open_claims import OpenClaims, count_claims
from queuey.web.facades.emodb.parameters import check_partitioned, read_count_limit, read_limit, read_ttl
from queuey.web.facades.facade import Facade, Mount, Resource
from queuey.web.requests import parse_form
from queuey.web.responses import JSON, Environ, Response, body_of, json_response
from queuey.web.v1.spec import MOST_COUNTED

PARTITIONS = 8
TTL = 14 * 86_400
"""Seconds."""
AT_ONCE = 1000
"""Ids that are acknowledged or renewed together."""
KINDS: dict[str, Kind] = {"queue": "plain", "dedupq": "dedup"}
BASE = "/{base:queue|dedupq}/1"
QUEUE = BASE + "/{queue:[^/]+}"
OWN = tuple(f"/{base}/1/" for base in KINDS)
HOT = {"send": "emodb.send", "ack": "emodb.ack", "renew": "emodb.renew", "poll": "emodb.poll", "peek": "emodb.peek"}
"""The resources that are handled at once, or whose answers have messages, by the last part of their paths."""

SUCCESS = b'{"success":true}'
NONE = b"[]"
ZERO = b"0"


class EmodbFacade(Facade):
    """Every call of the queue service. A queue that is not there is as one that is empty.

    Attributes:
        open_claims: Bounds the claims of each queue.
    """

    short_reads: ClassVar = frozenset({("GET", "emodb.poll"), ("GET", "emodb.peek")})
    longest_name = LONGEST_QUEUE

    def __init__(self, mount: Mount) -> None:
        super().__init__(mount)
        self._limits = self._service.limits
        self._messages = self._service.messages
        self._claims = self._service.claims
        self._core = self._service.core
        self._moves = self._service.moves
        self.open_claims = OpenClaims(self._claims)

    def resources(self) -> list[Resource]:
        """See the base class."""
        return [
            Resource("emodb.ping", "/ping", {"GET": lambda _environ, _match: Response(200, b"pong", errors.TEXT)}),
            Resource("emodb.batches", f"{BASE}/_sendbatch", {"POST": self.send_batches}),
            Resource("emodb.moves", f"{BASE}/_move", {"POST": self.move}),
            Resource("emodb.move", f"{BASE}/_move/{{reference}}", {"GET": self.show_move}),
            Resource("emodb.send", f"{QUEUE}/send", {"POST": self.send}, {"POST": self.begin_send}),
            Resource("emodb.batch", f"{QUEUE}/sendbatch", {"POST": self.send_batch}),
            Resource("emodb.poll", f"{QUEUE}/poll", {"GET": self.poll}, {"GET": self.begin_poll}),
            Resource("emodb.peek", f"{QUEUE}/peek", {"GET": self.peek}, {"GET": _in_a_thread}),
            Resource("emodb.ack", f"{QUEUE}/ack", {"POST": self.acknowledge}, {"POST": self.begin_acknowledge}),
            Resource("emodb.renew", f"{QUEUE}/renew", {"POST": self.renew}, {"POST": self.begin_renew}),
            Resource("emodb.size", f"{QUEUE}/size", {"GET": self.size}),
            Resource("emodb.uncached_size", f"{QUEUE}/uncached_size", {"GET": self.size}),
            Resource("emodb.claimcount", f"{QUEUE}/claimcount", {"GET": self.count_claims}),
            Resource("emodb.unclaimall", f"{QUEUE}/unclaimall", {"POST": self.unclaim_all}),
            Resource("emodb.queue", QUEUE, {"DELETE": self.purge}),
        ]

    def find_hot(self, path: str) -> Hot | None:
        """See the base class."""
        parts = path.split("/")
        if len(parts) != 5 or parts[1] not in KINDS or parts[2] != "1" or not parts[3]:  # noqa: PLR2004 - /queue/1/q/send
            return None
        match = {"base": parts[1], "queue": parts[3]}
        with suppress(errors.BadArgument, KeyError):
            self.where(match)  # A bad name is an error only of a caller that has a key, which a handler finds out.
            return Hot(HOT[parts[4]], match)
        return None

    def sign(self, environ: Environ) -> None:
        """See the base class."""
        key = environ.get("HTTP_X_BV_API_KEY")
        if key is None and "APIKey=" in environ["QUERY_STRING"]:
            key = parse_form(environ["QUERY_STRING"], "query").get("APIKey")
        environ.pop("HTTP_AUTHORIZATION", None)
        if key and ";" not in key:
            environ["HTTP_AUTHORIZATION"] = f"Application {key}"

    def error_response(self, error: Exception, status: int, text: str) -> Response:
        """See the base class."""
        return errors.emodb_error(error, status, text)

    def owns(self, path: str) -> bool:
        """See the base class. Its paths are fixed, so it may be beside version 1."""
        return path.startswith(OWN) or path == "/ping"

    def where(self, match: Match) -> Match:
        """See the base class.

        Raises:
            BadArgument: No queue can have this name.
        """
        return {"app": self.application, "queue": queue_name(match["queue"], KINDS[match["base"]])}

    def spec_of(self, match: Match) -> QueueSpec:
        """See the base class."""
        return QueueSpec(partitions=PARTITIONS, ttl=TTL, kind=KINDS[match["base"]])

    # Who may do what

    def _find(self, environ: Environ, match: Match, action: Action) -> QueueAccess | None:
        """Lets the caller in to a queue; None: it is not there, and the caller might use it if it were.

        Raises:
            NotAuthenticated, NotAllowed: The caller may not do this.
            BadArgument: No queue can have this name.
        """
        self._require_key(environ)
        try:
            return self.find(environ, match, action)
        except QueueNotFound:
            where = self.where(match)
            if not any(matches(each, where["queue"]) for each in self._patterns(environ, action)):
                raise NotAllowed("The credential is limited to other queues.") from None
            return None

    def _patterns(self, environ: Environ, action: Action) -> Sequence[str]:
        return self._authorization.patterns(environ, self.application, action)

    def _require_key(self, environ: Environ) -> None:
        """Makes sure that the caller has a key.

        Raises:
            NotAuthenticated, NotAllowed: It has none.
        """
        if self._authorization.caller(environ).anonymous:
            raise NotAllowed(anonymous=True)

    # Sending

    def send(self, environ: Environ, match: Match) -> Response:
        """Stores a message; a queue is made that is not there."""
        self._find(environ, match, "send")
        return self._send(environ, match, [payloads.read_message(environ, self._limits)])

    def begin_send(self, environ: Environ, match: Match) -> Begun:
        """Is ``send`` without blocking."""
        queue = self._authorization.enter_at_once(environ, self.where(match), "send")
        post = self._messages.post(queue, [payloads.read_message(environ, self._limits)])
        return post, lambda _: _json(SUCCESS)

    def send_batch(self, environ: Environ, match: Match) -> Response:
        """Stores messages."""
        self._find(environ, match, "send")
        return self._send(environ, match, payloads.read_batch(environ, self._limits))

    def send_batches(self, environ: Environ, match: Match) -> Response:
        """Stores messages in several queues, if the caller may send to all of them."""
        self._require_key(environ)
        batches = payloads.read_batches(environ, self._limits)
        for name in batches:
            try:
                self._find(environ, {**match, "queue": name}, "send")
            except NotAllowed:
                raise errors.RefusedQueue(name) from None
        for name, drafts in batches.items():
            self._send(environ, {**match, "queue": name}, drafts)
        return _json(SUCCESS)

    def _send(self, environ: Environ, match: Match, drafts: Sequence[Draft]) -> Response:
        for at in range(0, len(drafts), self._limits.max_batch):
            some = drafts[at : at + self._limits.max_batch]
            post = partial(self._messages.post, drafts=some)
            self.use(environ, match, "send", partial(self._core.use, call=post))
        return _json(SUCCESS)

    # Claims

    def poll(self, environ: Environ, match: Match) -> Response:
        """Claims messages."""
        access = self._find(environ, match, "work")
        query = _read_query(environ)
        return _or(NONE, access, partial(self._poll, ttl=read_ttl(query), limit=read_limit(query)))

    def _poll(self, access: QueueAccess, ttl: int, limit: int) -> Response:
        if ttl and self.open_claims.is_full(access):
            return _json(NONE)
        try:
            claimed = self._claims.claim_patiently(access, limit=limit, ttl=ttl, gather=True)
        except TooManyClaims:
            return _json(NONE)
        return self._polled(access.queue, claimed)

    def begin_poll(self, environ: Environ, match: Match) -> Begun:
        """Is ``poll`` without blocking."""
        queue = self._authorization.enter_at_once(environ, self.where(match), "work")
        query = _read_query(environ)
        ttl, limit = read_ttl(query), read_limit(query)
        if ttl and not self.open_claims.has_room(queue.qid):
            raise WouldBlock

        async def claim() -> list[HandedOut]:
            with suppress(TooManyClaims):
                return await self._claims.claim(queue, limit=limit, ttl=ttl, max_bytes=SHORT_BYTES, gather=True)
            return []

        return claim(), partial(self._polled, queue)

    def _polled(self, queue: Queue, claimed: Sequence[HandedOut]) -> Response:
        self.open_claims.add(queue.qid, sum(each.expires > 0 for each in claimed))
        return _shown(queue, [each.message for each in claimed])

    def peek(self, environ: Environ, match: Match) -> Response:
        """Shows messages, claimed or not."""
        access = self._find(environ, match, "work")
        limit = read_limit(_read_query(environ))
        return _or(NONE, access, lambda way: _shown(way.queue, self._claims.peek(way, limit)))

    def acknowledge(self, environ: Environ, match: Match) -> Response:
        """Acknowledges messages, whichever caller has claimed them."""
        access = self._find(environ, match, "work")
        _read_query(environ)
        return self._settle(environ, match, access, self._claims.acknowledge)

    def renew(self, environ: Environ, match: Match) -> Response:
        """Makes claims last longer, or ends them (``ttl=0``)."""
        access = self._find(environ, match, "work")
        ttl = read_ttl(_read_query(environ))
        return self._settle(environ, match, access, partial(self._claims.renew, ttl=ttl))

    def _settle(
        self,
        environ: Environ,
        match: Match,
        access: QueueAccess | None,
        settle: Callable[[Queue, Sequence[ClaimReceipt]], Coroutine[Any, Any, object]],
    ) -> Response:
        texts = payloads.read_ids(environ, self._limits)
        ids = MessageIds(self.where(match)["queue"])

        def call(way: QueueAccess) -> Response:
            receipts = ids.read(texts, way.queue.partitions)

            async def settle_all(queue: Queue) -> None:
                for at in range(0, len(receipts), AT_ONCE):
                    await settle(queue, receipts[at : at + AT_ONCE])

            self._core.use(way, settle_all)
            return _json(SUCCESS)

        if access is None:
            ids.read(texts, 0)
        return _or(SUCCESS, access, call)

    def begin_acknowledge(self, environ: Environ, match: Match) -> Begun:
        """Is ``acknowledge`` without blocking."""
        queue, receipts, _ = self._read_at_once(environ, match)
        return self._claims.acknowledge(queue, receipts), lambda _: _json(SUCCESS)

    def begin_renew(self, environ: Environ, match: Match) -> Begun:
        """Is ``renew`` without blocking."""
        queue, receipts, query = self._read_at_once(environ, match)
        return self._claims.renew(queue, receipts, read_ttl(query)), lambda _: _json(SUCCESS)

    def _read_at_once(self, environ: Environ, match: Match) -> tuple[Queue, list[ClaimReceipt], dict[str, str]]:
        """Reads a queue, receipts and the query; in a thread there may be more receipts, or none."""
        where = self.where(match)
        queue = self._authorization.enter_at_once(environ, where, "work")
        query = _read_query(environ)
        receipts = MessageIds(where["queue"]).read(payloads.read_ids(environ, self._limits), queue.partitions)
        if not 0 < len(receipts) <= AT_ONCE:
            raise WouldBlock
        return queue, receipts, query

    # Whole queues

    def size(self, environ: Environ, match: Match) -> Response:
        """Counts messages that are not acknowledged."""
        access = self._find(environ, match, "measure")
        limit = read_count_limit(_read_query(environ), MOST_COUNTED)
        return _or(ZERO, access, lambda way: json_response(self._claims.size(way, limit).count))

    def count_claims(self, environ: Environ, match: Match) -> Response:
        """Counts claimed messages."""
        access = self._find(environ, match, "measure")
        _read_query(environ)
        return _or(ZERO, access, lambda way: json_response(count_claims(self._claims, way)))

    def unclaim_all(self, environ: Environ, match: Match) -> Response:
        """Ends every claim."""
        access = self._find(environ, match, "work")
        _read_query(environ)

        def call(way: QueueAccess) -> Response:
            self._core.use(way, self._claims.release_all)
            return _json(SUCCESS)

        return _or(SUCCESS, access, call)

    def purge(self, environ: Environ, match: Match) -> Response:
        """Removes all messages: the caller may have to do with them what it could do one by one."""
        self._find(environ, match, "work")
        access = self._find(environ, match, "delete")
        _read_query(environ)

        def call(way: QueueAccess) -> Response:
            self._service.queues.purge(way)
            return _json(SUCCESS)

        return _or(SUCCESS, access, call)

    # Moves

    def move(self, environ: Environ, match: Match) -> Response:
        """Begins to move all messages of a queue to another one."""
        self._require_key(environ)
        query = _read_query(environ)
        given = [query.get(name) for name in ("from", "to")]
        for name, value in zip(("from", "to"), given, strict=True):
            if not value:
                raise errors.BadArgument(f"Missing required parameter: {name}")
        source, target = ({**match, "queue": name or ""} for name in given)
        for action in ("work", "delete"):
            self._find(environ, source, action)
        self._find(environ, target, "send")
        if given[0] == given[1]:
            raise errors.BadArgument("cannot move queue to itself")

        def begin(to: QueueAccess) -> Response:
            way = self.find(environ, source, "delete")
            return json_response({"id": moves.reference_of(self._moves.begin(way, to).id)})

        if self._find(environ, source, "delete") is None:
            self.make_for(source)
        return self.use(environ, target, "send", begin)

    def show_move(self, environ: Environ, match: Match) -> Response:
        """Says how a move stands, to every caller of the application."""
        if not any(self._may(environ, action) for action in ("measure", "send", "delete")):
            raise NotAllowed
        move = moves.move_of(match["reference"])
        if move is not None:
            with suppress(MoveNotFound):
                found = self._moves.show(self.application, move, partial(is_of, kind=KINDS[match["base"]]))
                return json_response(moves.shown_move(found))
        raise MoveNotFound(match["reference"])

    def _may(self, environ: Environ, action: Action) -> bool:
        """Returns whether the caller may do something with any queue."""
        try:
            return bool(self._patterns(environ, action))
        except NotAllowed:
            return False


def _in_a_thread(_environ: Environ, _match: Match) -> Begun:
    """Is a request that blocks always."""
    raise WouldBlock


def _read_query(environ: Environ) -> dict[str, str]:
    """Reads the query. Unknown fields mean nothing, as in the original."""
    query = parse_form(environ["QUERY_STRING"], "query")
    check_partitioned(query)
    return query


def _json(body: bytes) -> Response:
    return Response(200, body, JSON)


def _or(otherwise: bytes, access: QueueAccess | None, call: Callable[[QueueAccess], Response]) -> Response:
    """Makes a call with a queue; if there is none, answers ``otherwise``."""
    if access is not None:
        with suppress(QueueNotFound):
            return call(access)
    return _json(otherwise)


def _shown(queue: Queue, messages: Sequence[Message]) -> Response:
    return Response(200, body_of(payloads.write_messages(messages, MessageIds(queue.name))), JSON)
