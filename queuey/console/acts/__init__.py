"""Views of acts: a page shows the plan and asks for confirmation, a form executes it, and the audit log records it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from urllib.parse import quote

import msgspec

from queuey.console import cookies, pages
from queuey.console.acts.act import Act, ActPlan
from queuey.console.acts.keys import IssueKey, RevokeKey
from queuey.console.acts.messages import CancelJob, DeleteMessageAct, Redrive, ReleaseJob, RetryJob, SendMessageAct
from queuey.console.acts.queues import CancelMove, ChangeOptions, MoveMessages, PauseClaims, ResumeClaims, Rewind
from queuey.console.acts.schedules import (
    AddSchedule,
    ChangeSchedule,
    PauseSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleAct,
)
from queuey.console.sessions import PageRequest, PageRequestFactory, read_form
from queuey.messages.message_views import format_place
from queuey.model.errors import (
    Conflict,
    InvalidRequest,
    NotAllowed,
    NotFound,
    QueueyError,
    StoreUnavailable,
    TooManyRequests,
)
from queuey.operations.audit_log import AuditEntry, Outcome, SubmittedForm
from queuey.web.admission.rates import NamedRateLimiter, Rate
from queuey.web.endpoint import Match
from queuey.web.errors import NoSuchResource, status_of
from queuey.web.requests import Request, read_query
from queuey.web.responses import Response

QUEUE_ACTS: tuple[Act, ...] = (
    SendMessageAct(),
    ChangeOptions(),
    MoveMessages(),
    PauseClaims(),
    ResumeClaims(),
    DeleteMessageAct(),
    ReleaseJob(),
    CancelJob(),
    RetryJob(),
    Redrive(),
    Rewind(),
    CancelMove(),
)
SCHEDULE_ACTS: tuple[ScheduleAct, ...] = (
    RunSchedule(),
    PauseSchedule(),
    ResumeSchedule(),
    ChangeSchedule(),
    RemoveSchedule(),
)
APPLICATION_ACTS: tuple[Act, ...] = (IssueKey(), RevokeKey(), AddSchedule(), *SCHEDULE_ACTS)
MAX_ACT_RATE = Rate(1, 30)
"""Limit of acts of one caller, as each writes to the audit log: thirty at once, then one a second."""
MAX_LOGGED_LENGTH = 600
"""Max characters of a field in the audit log."""
_FORM_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class ActViews:
    """Views of ``acts/{act}`` under a queue and of ``_acts/{act}`` under an application.

    Args:
        page_requests: Identifies callers.
    """

    def __init__(self, page_requests: PageRequestFactory) -> None:
        self._page_requests = page_requests
        self._audit = page_requests.service.audit
        self._bound = NamedRateLimiter(MAX_ACT_RATE, "acts of this caller")
        self._acts = {(True, act.name): act for act in page_requests.queue_acts} | {
            (False, act.name): act for act in APPLICATION_ACTS
        }

    async def show(self, request: Request, match: Match) -> Response:
        """Shows the plan and the form of an act. Raises NoSuchResource or, without its rights, NotAllowed."""
        act = self._find_act(match)
        fields = read_query(request, frozenset(act.fields))
        page_request = await self._page_requests.identify(request, match, fields)
        await _require_rights(act, page_request)
        return await self._render_page(act, page_request)

    async def do(self, request: Request, match: Match) -> Response:
        """Executes the act, once for each form, and redirects to its entry in the audit log.

        A form that is sent again only leads to the entry; with other contents, it shows the act's page with an error,
        as a wrong typed name and an exceeded :data:`MAX_ACT_RATE` do.

        Raises:
            NoSuchResource: The act does not exist.
            InvalidRequest: The form has no valid id.
            NotAllowed: The form is not of this session, or the caller lacks a right of the act.
        """
        act = self._find_act(match)
        # Identify the caller before the form is read.
        page_request = await self._page_requests.identify(request, match, {})
        fields = read_form(request, cookies.SESSION_COOKIE, act.longest)
        form = fields.get("act_id", "")
        if _FORM_ID.fullmatch(form) is None:
            raise InvalidRequest({"act_id": "The form has no valid id. Open the page again"})
        who = await page_request.callers.find_holder_name(page_request.request)
        named = sorted((name, text) for name, text in fields.items() if name in act.fields)
        content = blake2b(
            msgspec.msgpack.encode((act.name, who, sorted(page_request.match.items()), named)), digest_size=16
        ).digest()
        request.must_end = True  # The audit log gets the result even if the user closes the page.
        sent = await self._audit.find_form(page_request.application, form)
        if sent is not None and sent.content == content:
            return pages.redirect(_entry_url(page_request.application, sent))
        page_request = msgspec.structs.replace(page_request, given=fields)
        await _require_rights(act, page_request)
        try:
            _require_valid_form(act, page_request, sent)
            self._bound.take(who)
            details = {
                name: page_request.given[name][:MAX_LOGGED_LENGTH]
                for name in act.logged_fields
                if page_request.given.get(name)
            }
            entry, sent, is_first = await self._audit.begin(
                page_request.application,
                form,
                content=content,
                act=act.name,
                who=who,
                queue=await act.require_queue(page_request),
                details=details,
            )
        except (InvalidRequest, TooManyRequests) as error:
            return await self._render_page(act, page_request, error)
        return (
            await self._carry_out(act, page_request, entry, sent)
            if is_first
            else pages.redirect(_entry_url(page_request.application, sent))
        )

    async def _carry_out(self, act: Act, page_request: PageRequest, entry: AuditEntry, sent: SubmittedForm) -> Response:
        """Executes an act, and completes its audit entry.

        Redirects to the entry; a secret, or a result that could not be recorded, is shown at once. An error is recorded
        as ``failed`` or ``unknown``; an expected one shows the form again, an unexpected one is raised.
        """

        async def end(outcome: Outcome, text: str, details: Mapping[str, str] = {}) -> None:
            ended = msgspec.structs.replace(entry, details={**entry.details, **details})
            await self._audit.end(page_request.application, sent.entry, ended, outcome, text)

        try:
            result = await act.do(page_request)
        except QueueyError as error:
            await end("unknown" if getattr(error, "outcome", "none") == "unknown" else "failed", str(error))
            if isinstance(error, InvalidRequest | NotFound | NotAllowed | Conflict | TooManyRequests):
                return await self._render_page(act, page_request, error)
            raise
        unlogged = ""
        try:
            await end("partly" if result.partly else "done", result.text, result.details)
        except StoreUnavailable as error:
            unlogged = str(error)
        if not result.secret and not unlogged:
            return pages.redirect(_entry_url(page_request.application, sent))
        return await page_request.render("deed.html", act.title, deed=result, unlogged=unlogged)

    def _find_act(self, match: Match) -> Act:
        act: Act | None = self._acts.get(("queue" in match, match["act"]))
        if act is None:
            raise NoSuchResource("This page does not exist.")
        return act

    async def _render_page(self, act: Act, page_request: PageRequest, error: QueueyError | None = None) -> Response:
        """Renders the page of an act: its plan, its form with a new id, and the errors of a form that was refused.

        A plan with an invalid field is blank, and its errors are shown, too. If the plan fails otherwise, the form's
        own error is raised, or else the plan's. A link fills in no inputs, unless the act has previews.
        """
        errors = error.fields if isinstance(error, InvalidRequest) else {"": str(error)} if error else {}
        try:
            plan = await act.plan(page_request)
        except InvalidRequest as mistake:
            plan, error, errors = ActPlan(), error or mistake, mistake.fields | errors
        except QueueyError:
            if error is not None:
                raise error from None
            raise
        subject = act.subject(page_request)
        # A link sets only the subject of an act, not its inputs; typed inputs stay.
        typed = page_request.given if page_request.request.method == "POST" or act.previews else {}
        return await page_request.render(
            "act.html",
            f"{act.title}:" if subject else act.title,
            subject,
            status=200 if error is None else status_of(error),
            act=act,
            address=quote(page_request.request.path, safe="/"),
            plan=plan,
            inputs=await act.inputs(page_request),
            given=typed,
            hidden={name: text for name, text in page_request.given.items() if name in act.fields} | dict(plan.hidden),
            wrong={name.removeprefix("0.").removeprefix("message."): text for name, text in errors.items()},
            back=act.page_address(page_request),
            act_id=secrets.token_urlsafe(16),
        )


async def _require_rights(act: Act, page_request: PageRequest) -> None:
    for action in act.needs:
        if page_request.name:
            await page_request.enter(action)
        else:
            await page_request.patterns(action)


def _require_valid_form(act: Act, page_request: PageRequest, sent: SubmittedForm | None) -> None:
    if sent is not None:
        raise InvalidRequest({"form": "It was sent before, with other contents. Check it, and send it again"})
    if act.types_name and page_request.given.get("typed") != act.subject(page_request):
        raise InvalidRequest({"typed": "The typed name is not correct"})


def _entry_url(application: str, sent: SubmittedForm) -> str:
    return pages.link("a", application, "_audit", format_place(*sent.entry))
