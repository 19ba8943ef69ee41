"""Views of acts: a page says what would be done and asks once; the form does it; the audit log says what was done."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from urllib.parse import quote

from queuey import ids
from queuey.errors import InvalidRequest, QueueyError
from queuey.service import Service
from queuey.service.operating.audit import Outcome
from queuey.web.authorization import Authorization
from queuey.web.console import cookies, pages
from queuey.web.console.acts.act import Act, Ask, Deed, Plan
from queuey.web.console.acts.keys import IssueKey, RevokeKey
from queuey.web.console.acts.messages import DeleteMessage, Redrive, ReleaseJob, SendMessage
from queuey.web.console.acts.offsets import Rewind
from queuey.web.console.acts.queues import CancelMove, ChangeOptions, DeleteQueue, MoveMessages, Purge
from queuey.web.console.bounds import Bound
from queuey.web.console.sessions import SessionCallers, read_form, require_caller
from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource
from queuey.web.gateway.rates import Rate
from queuey.web.requests import Request, read_query
from queuey.web.responses import Response

OF_QUEUES: tuple[Act, ...] = (
    SendMessage(),
    ChangeOptions(),
    MoveMessages(),
    Purge(),
    DeleteQueue(),
    DeleteMessage(),
    ReleaseJob(),
    Redrive(),
    Rewind(),
    CancelMove(),
)
OF_APPLICATIONS: tuple[Act, ...] = (IssueKey(), RevokeKey())
OFFERED = ("send", "options", "move", "purge", "delete-queue")
"""Acts that the page of a queue offers; all others are offered beside what they are about."""
RATE = Rate(1, 30)
"""Acts of one caller: thirty at once and one a second; each writes to the audit log."""
MAX_NOTED = 200
"""Characters of a field in the audit log."""
_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class ActViews:
    """Views of ``acts/{act}`` under a queue and of ``_acts/{act}`` under an application.

    Args:
        service: Has the use cases.
        authorization: Knows who asks.
        callers: Knows what a session stands for.
    """

    def __init__(self, service: Service, authorization: Authorization, callers: SessionCallers) -> None:
        self._service = service
        self._authorization = authorization
        self._callers = callers
        self._bound = Bound(RATE, "acts of this caller")
        self._acts = {(True, act.name): act for act in OF_QUEUES} | {(False, act.name): act for act in OF_APPLICATIONS}

    def show(self, request: Request, match: Match) -> Response:
        """Says what would be done, and asks."""
        act = self._find(match)
        return self._page(act, self._ask(act, request, match, read_query(request, act.fields)))

    def do(self, request: Request, match: Match) -> Response:
        """Does it, once for each form; leads to what the audit log says of it."""
        act = self._find(match)
        require_caller(self._authorization, request)
        fields = read_form(request, cookies.SESSION, act.longest)
        ask = self._ask(act, request, match, fields)
        try:
            plan = act.plan(ask)
            self._check(plan, fields)
        except InvalidRequest as error:
            return self._page(act, ask, error)
        who = self._callers.holder(request)
        self._bound.take(who)
        details = {name: ask.given[name][:MAX_NOTED] for name in act.noted if ask.given.get(name)}
        place, entry, is_known = self._service.audit.begin(
            ask.application, fields["act_id"], act=act.name, who=who, queue=ask.name, details=details
        )
        page = pages.link("a", ask.application, "_audit", f"{place[0]}:{ids.to_hex(place[1])}")
        if is_known:
            return pages.redirect(page)

        def end(outcome: Outcome, text: str, details: Mapping[str, str] = {}) -> None:
            entry.details.update(details)
            self._service.audit.end(ask.application, place, entry, outcome, text)

        try:
            deed = act.do(ask)
        except QueueyError as error:
            end("unknown" if getattr(error, "outcome", "none") == "unknown" else "failed", str(error))
            if isinstance(error, InvalidRequest):
                return self._page(act, ask, error)
            raise
        end("done", deed.text, deed.details)
        return self._secret(act, ask, deed) if deed.secret else pages.redirect(page)

    def _find(self, match: Match) -> Act:
        act = self._acts.get(("queue" in match, match["act"]))
        if act is None:
            raise NoSuchResource("The resource could not be found.")
        return act

    def _ask(self, act: Act, request: Request, match: Match, given: Mapping[str, str]) -> Ask:
        """Makes sure that the caller may do it."""
        ask = Ask(
            service=self._service,
            authorization=self._authorization,
            request=request,
            caller=require_caller(self._authorization, request),
            application=match["app"],
            name=match.get("queue", ""),
            given=given,
            ends=self._callers.rights_end(request),
        )
        if ask.name:
            ask.enter(act.needs)
        else:
            self._authorization.patterns(request, ask.application, act.needs)
        return ask

    def _check(self, plan: Plan, fields: Mapping[str, str]) -> None:
        """Raises InvalidRequest unless a form was filled in as the plan asks."""
        if not plan.button:
            raise InvalidRequest({"act": "There is nothing to do"})
        if plan.typed and fields.get("typed") != plan.typed:
            raise InvalidRequest({"typed": "The name was not typed as it is, so nothing was done"})
        if _ID.fullmatch(fields.get("act_id", "")) is None:
            raise InvalidRequest({"act_id": "The form has no number of its own. Open the page again"})

    def _page(self, act: Act, ask: Ask, error: InvalidRequest | None = None) -> Response:
        """Shows what is planned; with an error that the plan itself has, only that."""
        try:
            plan = act.plan(ask)
        except InvalidRequest as wrong:
            plan, error = Plan(), wrong
        return pages.render(
            ask.request,
            "act.html",
            status=200 if error is None else 400,
            caller=ask.caller,
            application=ask.application,
            queue_name=ask.name,
            act=act,
            address=quote(ask.request.path, safe="/"),
            plan=plan,
            inputs=act.inputs(ask),
            given=ask.given,
            hidden={name: text for name, text in ask.given.items() if name in act.fields} | dict(plan.hidden),
            wrong={} if error is None else {name.removeprefix("0."): text for name, text in error.fields.items()},
            act_id=secrets.token_urlsafe(16),
        )

    def _secret(self, act: Act, ask: Ask, deed: Deed) -> Response:
        """Shows what is shown once."""
        return pages.render(
            ask.request, "secret.html", caller=ask.caller, application=ask.application, act=act, deed=deed
        )
