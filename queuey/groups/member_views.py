"""Views of consumer groups whose members the service manages: ``/v1/{app}/_groups``.

The id of a member is a secret. It must not appear in a log, metric or error.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from queuey.access.authorization import Authorization
from queuey.access.operations import APP, Views, declare, json_answers
from queuey.api import groups as api
from queuey.api.values import Done
from queuey.groups.groups import GroupUseCases
from queuey.groups.rules.group_state import JoinRequest
from queuey.model.errors import NotAuthenticated, QueueyError, TooManyWaiters
from queuey.model.messages import Queue
from queuey.model.rights import MemberCredential, is_allowed
from queuey.runtime.limits import Limits
from queuey.web import validators
from queuey.web.admission.long_polls import LongPoll
from queuey.web.endpoint import Match
from queuey.web.openapi import Tag
from queuey.web.requests import Request, read_body
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors, read_object

MAX_HEARTBEAT = 1 << 20
MAX_PATTERN = 100
MAX_NUMBER_DIGITS = 18


class GroupViews(Views):
    """Views of groups and of their members."""

    def __init__(self, authorization: Authorization, limits: Limits, groups: GroupUseCases) -> None:
        super().__init__(authorization, limits)
        self._groups = groups

    async def join(self, request: Request, match: Match) -> Response:
        """Adds a member; refuses it unless it may consume all queues that it names."""
        credential = await self._authorization.find_member_credential(request)
        terms = await request.parse_body(partial(self._read_join, request, credential))
        await self._authorization.require_consumer(request, match["app"], terms.names, terms.patterns)
        return json_response(await self._groups.join(match["app"], match["group"], terms), 201)

    async def heartbeat(self, request: Request, match: Match) -> Response:
        """Records what a member owns and answers with its plan, as soon as that has changed or the wait is over.

        If its credential is not valid any more, the member leaves.
        """
        names = match["app"], match["group"], match["member"]
        credential = self._authorization.find_former_credential(request)
        try:
            credential = await self._authorization.find_member_credential(request)
            heartbeat = await request.parse_body(partial(self._read_heartbeat, request))
            ends = (await self._authorization.identify(request)).expires
            # The wait ends before the token expires, because that would end the membership.
            remaining = heartbeat.wait if ends is None else max(ends - time.time(), 0.0)
            poll = request.make_long_poll(wait := min(heartbeat.wait, self._limits.max_wait, remaining))
            poll.is_heartbeat = True
            async with poll:
                answer = None
                must_answer = not wait
                while answer is None:
                    credential = await self._authorization.find_member_credential(request)
                    answer = await self._groups.heartbeat(*names, credential, heartbeat, poll, must_answer=must_answer)
                    must_answer = answer is None and not await _wait_for_attempt(poll)
        except NotAuthenticated:
            # The membership ends with its credential, so others need not wait for the session to time out.
            if credential is not None:
                with suppress(QueueyError):
                    await self._groups.leave(*names, credential, returns=False, is_own_request=False)
            raise
        return json_response(answer)

    async def leave(self, request: Request, match: Match) -> Response:
        names, member = (match["app"], match["group"]), match["member"]
        returns = self.fields(api.LeaveQuery).query(request).returns
        if member.isascii() and member.isdecimal() and len(member) <= MAX_NUMBER_DIGITS:
            await self._authorization.require_administrator(request, match["app"])
            await self._groups.remove_member(*names, int(member))
        else:
            credential = await self._authorization.find_member_credential(request)
            await self._groups.leave(*names, member, credential, returns=returns)
        return json_response(Done())

    async def show(self, request: Request, match: Match) -> Response:
        info = await self.find(request, match, self.fields(api.GroupQuery).query(request))
        return await request.in_thread(partial(json_response, info), computes=True)

    async def find(self, request: Request, match: Match, query: api.GroupQuery, *, few: bool = False) -> api.GroupInfo:
        """Returns a page of a group, with the queues that the caller may measure.

        The caller needs ``measure`` by a pattern, as for the list of groups. With ``few``, does not search for queues.
        """
        await self._authorization.patterns(request, match["app"], "measure")
        viewer = await self._authorization.find_member_credential(request)

        def visible(queue: Queue) -> bool:
            return is_allowed(queue, viewer.caller, "measure")

        return await self._groups.show(
            match["app"], match["group"], visible, viewer, start=query.start, lag=query.lag, few=few
        )

    async def list(self, request: Request, match: Match) -> Response:
        return json_response(await self.list_names(request, match, self.fields(api.GroupListQuery).query(request)))

    async def list_names(self, request: Request, match: Match, query: api.GroupListQuery) -> api.GroupNames:
        await self._authorization.patterns(request, match["app"], "measure")
        return await self._groups.list_names(match["app"], start=query.start, limit=query.limit)

    async def delete(self, request: Request, match: Match) -> Response:
        force = self.fields(api.DeleteQuery).query(request).force
        await self._authorization.require_administrator(request, match["app"])
        await self._groups.forget(match["app"], match["group"], force=force)
        return json_response(Done())

    def _read_join(self, request: Request, credential: MemberCredential) -> JoinRequest:
        errors = Errors()
        terms = self.fields(api.NewMember).body(request, errors)
        names = _read_texts("queues", terms.queues, self._limits.max_queue_name, errors)
        patterns = _read_texts("patterns", terms.patterns, MAX_PATTERN, errors)
        if not (names or patterns or errors):
            errors["queues"] = f"{validators.REQUIRED}: queues or patterns"
        errors.check()
        session, revoke, grace = (round(1000 * seconds) for seconds in (terms.session, terms.revoke, terms.grace))
        return JoinRequest(names, patterns, credential, terms.instance, session, revoke, grace, terms.name)

    def _read_heartbeat(self, request: Request) -> api.Heartbeat:
        body = read_object(read_body(request, MAX_HEARTBEAT))
        fields, errors = self.fields(api.Heartbeat), Errors()
        fields.record_unknown_names(request, body)
        heartbeat = fields.read(body, errors)
        owned = errors.parse_field("owned", _read_partitions, heartbeat.owned) or {}
        given_back = errors.parse_field("given_back", _read_partitions, heartbeat.given_back) or {}
        errors.check()
        return msgspec.structs.replace(heartbeat, owned=owned, given_back=given_back)


async def _wait_for_attempt(poll: LongPoll) -> bool:
    """Waits for a heartbeat's next attempt.

    Returns False if that is the last one: the wait is over, or there is no place to wait. Raises if the client has
    left.
    """
    with suppress(TooManyWaiters):
        if await poll.next():
            return True
        await poll.resume()
        poll.client.require_present()
    return False


def _read_texts(field: str, values: list[Any] | None, max_length: int, errors: Errors) -> tuple[str, ...]:
    texts = set()
    for number, value in enumerate(values or ()):
        text = errors.parse_field(f"{field}.{number}", validators.parse_printable_text, value, max_length)
        if text is None:
            errors.setdefault(f"{field}.{number}", validators.REQUIRED)
        else:
            texts.add(text)
    return tuple(sorted(texts))


def _read_partitions(value: object) -> api.Partitions:
    try:
        return msgspec.convert(value, api.Partitions, str_keys=True)
    except msgspec.ValidationError as error:
        raise validators.BadField(f'Is not {{"queue": {{"partition": epoch}}}}: {error}') from None


GROUPS_TAG = Tag("Groups", "Consumers that share the partitions of queues.")
CONSUMERS = APP + "/_groups/{group}"
MEMBER = CONSUMERS + "/members/{member}"
OPERATIONS = (
    declare(
        GROUPS_TAG,
        f"POST {CONSUMERS}/members",
        "Join group",
        json_answers(api.Joined, 201),
        GroupViews.join,
        about="Needs a key of the application, or a role, with `read` and `claim`. 409: the group is served in another "
        "data centre.",
        body=api.NewMember,
        further_errors=(409,),
    ),
    declare(
        GROUPS_TAG,
        f"POST {MEMBER}",
        "Send heartbeat, of a member",
        api.HeartbeatAnswer,
        GroupViews.heartbeat,
        about="Reports the partitions that the member owns and gives back. The answer comes at once if the member has "
        "something to do, otherwise after `wait` seconds. 404 `MemberGone`: join again.",
        body=api.Heartbeat,
        further_errors=(409,),
        ends_with_client=True,
    ),
    declare(
        GROUPS_TAG,
        f"DELETE {MEMBER}",
        "Leave group",
        Done,
        GroupViews.leave,
        about="With a member's public number in place of its id: remove it, which needs `admin` for all queues.",
        query=api.LeaveQuery,
        further_errors=(409,),
    ),
    declare(
        GROUPS_TAG,
        f"GET {APP}/_groups",
        "List consumer groups, of the application",
        api.GroupNames,
        GroupViews.list,
        query=api.GroupListQuery,
        resource="consumer_groups",
    ),
    declare(
        GROUPS_TAG,
        f"GET {CONSUMERS}",
        "Show consumer group",
        api.GroupInfo,
        GroupViews.show,
        query=api.GroupQuery,
        resource="consumer_group",
    ),
    declare(
        GROUPS_TAG,
        f"DELETE {CONSUMERS}",
        "Delete consumer group",
        Done,
        GroupViews.delete,
        about="Needs `admin` for all queues. Keeps the group's offsets. 409: the group has members (see `force`).",
        query=api.DeleteQuery,
        further_errors=(409,),
    ),
)
