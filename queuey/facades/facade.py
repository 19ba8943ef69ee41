"""Shared parts of all facades: paths, credentials, errors, and queues that are created on first use."""

from __future__ import annotations

import math
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from queuey.access.credentials.readers import ApplicationKeys, Identity
from queuey.app.service import App
from queuey.facades.settings import Facades
from queuey.model import ids
from queuey.model.errors import NotAllowed, NotAuthenticated, QueueExists, QueueNotFound, StoreBusy
from queuey.model.messages import Location, Queue, QueueSpec
from queuey.model.rights import Action, Caller, matches, owner_name
from queuey.queues.queues import queue_name_error
from queuey.storage import Applications
from queuey.web.endpoint import Handler, Match, View
from queuey.web.requests import Request
from queuey.web.responses import Response
from queuey.web.validators import show

T = TypeVar("T")
_ADDRESS = re.compile(r"(?:\[.*\]|[0-9.]+)(?::[0-9]*)?")
MAX_ATTEMPTS = 3


class FacadeCredentials:
    """Issues the credentials of a facade's callers, and reads them.

    A credential never leaves the process, and cannot be guessed.
    """

    scheme = "Facade"
    max_cache_seconds = math.inf

    def __init__(self) -> None:
        self._applications: dict[str, str] = {}

    def issue_header(self, application: str) -> str:
        secret = secrets.token_hex(32)
        self._applications[secret] = application
        return f"{self.scheme} {secret}"

    async def read(self, credential: str, now: float) -> Identity:
        application = self._applications.get(credential)
        if application is None:
            raise NotAuthenticated("Invalid credential: only facades issue credentials of this scheme.")
        name = owner_name(application)
        return Identity(frozenset({name}), (), tenant=name)


class AccessKeyCredentials:
    """Issues and reads the credentials of requests that an access key has signed.

    A credential only names the key. The facade verifies the signature before it carries out the request. A secret mark
    proves that this process issued the credential; without it, the credential is refused.
    """

    scheme = "Signed"
    max_cache_seconds = ApplicationKeys.max_cache_seconds

    def __init__(self, applications: Applications) -> None:
        self._keys = ApplicationKeys(applications)
        self._mark = secrets.token_hex(8)

    def make_header(self, digest: bytes) -> str:
        return f"{self.scheme} {self._mark}{digest.hex()}"

    async def read(self, credential: str, now: float) -> Identity:
        mark, digest = credential[: len(self._mark)], credential[len(self._mark) :]
        if not secrets.compare_digest(mark, self._mark):
            raise NotAuthenticated("Invalid credential: only facades issue credentials of this scheme.")
        return await self._keys.find(bytes.fromhex(digest))


class Resource(NamedTuple):
    """One resource of a facade.

    Attributes:
        name: Name in the metrics.
        pattern: Pyramid's pattern of the path after the prefix.
        views: Views by method; other methods get :class:`~queuey.web.errors.NoSuchResource`. A plain function becomes
            a view that takes a query.
    """

    name: str
    pattern: str
    views: Mapping[str, Handler | View]


class Setup(NamedTuple):
    """Shared arguments of all facades.

    Attributes:
        secret: Secret from which those of access keys are derived; blank if SQS is not served.
    """

    app: App
    settings: Facades
    secret: bytes
    callers: FacadeCredentials
    signed: AccessKeyCredentials


class Facade(ABC):
    """One protocol of another system.

    Attributes:
        application: Application that owns the queues.
        spec: Options of queues created on first use, unless :meth:`spec_of` chooses them by name.
        max_name_length: Max characters of the name of a created queue; None for the usual limit.
    """

    spec: ClassVar[QueueSpec] = QueueSpec()
    max_name_length: ClassVar[int | None] = None

    def __init__(self, setup: Setup, prefix: str) -> None:
        self.application = setup.settings.app
        self._service = setup.app.service
        self._authorization = setup.app.authorization
        self._prefix = prefix

    # Methods that a protocol defines

    @abstractmethod
    def resources(self) -> list[Resource]:
        pass

    @abstractmethod
    def set_credential(self, request: Request) -> None:
        """Puts the caller's credential into ``headers["authorization"]``, where version 1 of the API expects it."""

    @abstractmethod
    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        pass

    def application_of(self, _caller: Caller) -> str:
        return self.application

    # Requests

    def include(self, config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
        for name, pattern, views in self.resources():
            bound = {
                method: view if isinstance(view, View) else View(view, reads_query=True)
                for method, view in views.items()
            }
            config.add_resource(name, self._prefix + pattern, bound, original=True)

    def prepare(self, request: Request) -> bool:
        """Sets facade and credential of a request to this facade. Returns False for any other request."""
        if not self.owns(request.path):
            return False
        request.facade = self
        self.set_credential(request)
        return True

    def owns(self, path: str) -> bool:
        return f"{path}/".startswith(f"{self._prefix}/") and not path.startswith("/__")

    # Queues

    def queue_match(self, match: Match) -> Match:
        """Returns application and queue of a path. A protocol with other queue names translates them here."""
        return {"app": self.application, "queue": match["queue"]}

    def spec_of(self, match: Match) -> QueueSpec:
        return self.spec

    async def apply(self, request: Request, match: Match, action: Action, call: Callable[[Queue], Awaitable[T]]) -> T:
        """Authorizes the caller for an action on a queue, and makes a call with it. Creates a missing queue.

        Raises:
            NotAuthenticated, NotAllowed: The caller lacks a right; to create a queue it needs the right to send.
            InvalidRequest: The queue's name is not valid.
            StoreBusy: Others deleted the queue at each attempt.
        """
        where = self.queue_match(match)
        for _ in range(MAX_ATTEMPTS):
            try:
                return await (await self._authorization.admit(request, where, action)).apply(call)
            except QueueNotFound:
                await self.create_queue(request, match)
        raise _make_busy_error(match)

    async def create_queue(self, request: Request, match: Match) -> Queue:
        """Creates a queue, or returns the existing one, whatever its options. Needs the right to send to it.

        Raises as :meth:`apply`.
        """
        name = self.queue_match(match)["queue"]
        patterns = await self._authorization.patterns(request, self.application, "send")
        if not any(matches(pattern, name) for pattern in patterns):
            raise NotAllowed(f"The credential is limited to queues that match {', '.join(patterns)}.")
        return await self.create_queue_unchecked(match)

    async def create_queue_unchecked(self, match: Match) -> Queue:
        where, queues = self.queue_match(match), self._service.queues
        spec = queues.make_claimable(self.spec_of(match))
        try:
            return (await queues.create(where["app"], where["queue"], spec, longest=self.max_name_length))[0]
        except QueueExists as error:
            return error.queue


class OpenFacade(Facade):
    """A protocol without credentials: every caller has all rights on the application.

    Requests that a browser sends for a web page of another site are refused with NotAllowed once the caller is
    authenticated. Queue names are the same in both APIs; :meth:`queue_match` raises for one that is not valid.
    """

    def __init__(self, setup: Setup, prefix: str) -> None:
        super().__init__(setup, prefix)
        self._header = setup.callers.issue_header(self.application)
        self._hosts = frozenset((setup.settings.hosts or "").lower().split())

    def set_credential(self, request: Request) -> None:
        # Gives the request all rights on the application, or refuses it if a web page may have sent it.
        if (reason := self._find_refusal_reason(request)) is not None:
            request.headers.pop("authorization", None)
            request.credential_error = NotAllowed(reason)
        else:
            request.headers["authorization"] = self._header

    @abstractmethod
    def make_bad_name_error(self, reason: str) -> Exception:
        pass

    def queue_match(self, match: Match) -> Match:
        if (reason := queue_name_error(match["queue"], self._service.limits.max_queue_name)) is not None:
            raise self.make_bad_name_error(reason)
        return super().queue_match(match)

    def _find_refusal_reason(self, request: Request) -> str | None:
        """Returns why a request may come from a web page of another site, or None if it does not.

        A header ``Host`` that is there must be an address, a name without dots or one of the setting ``hosts``.
        """
        # An attacker can point a name of their own domain at this machine (DNS rebinding). Then their page has the same
        # origin, and only the name in Host reveals it.
        host = request.headers.get("host", "")
        if "." in host and not _ADDRESS.fullmatch(host) and host.partition(":")[0].lower() not in self._hosts:
            return (
                f'The host "{show(host)}" is not allowed, because it is not in the setting facades.hosts. '
                "Add its name there, or use the service's address."
            )
        if _is_cross_site(request):
            return "A browser sent the request for a page of another site. Send it from a program."
        return None


def as_uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def message_id(location: Location) -> str:
    partition, position = location
    text = as_uuid(ids.to_hex(position))
    return text if partition == 1 else f"{text}-{partition}"


def _is_cross_site(request: Request) -> bool:
    """Returns whether headers that only browsers send show that a page of another site made the request.

    ``Origin`` counts only without ``Sec-Fetch-Site``.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"none", "same-origin"}
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def _make_busy_error(match: Match) -> StoreBusy:
    return StoreBusy(f"Queue {match['queue']!r} was deleted again and again while this request ran. Try again.")
