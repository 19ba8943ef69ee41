"""Shared parts of all facades: paths, callers, errors, and queues that are created on first use."""

from __future__ import annotations

import math
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from queuey import ids
from queuey.access import Caller, matches, owner_name
from queuey.api.queues import Action
from queuey.errors import NotAllowed, NotAuthenticated, QueueExists, QueueNotFound, StoreBusy
from queuey.facades.settings import Facades
from queuey.messages import Location, Queue, QueueSpec
from queuey.service.queues import queue_name_error
from queuey.storage import Applications
from queuey.web.credentials import ApplicationKeys, Identity
from queuey.web.endpoint import Handler, Match, View
from queuey.web.parts import App
from queuey.web.requests import Request
from queuey.web.responses import Response
from queuey.web.validators import show

T = TypeVar("T")
_ADDRESS = re.compile(r"(?:\[.*\]|[0-9.]+)(?::[0-9]*)?")
ATTEMPTS = 3
"""Max attempts to find or create a queue that others delete."""


class FacadeCallers:
    """Reads credentials that a facade gives to its callers. See :class:`~queuey.web.credentials.CredentialReader`.

    They never leave the process, and no other caller can guess one.
    """

    scheme = "Facade"
    believed = math.inf

    def __init__(self) -> None:
        self._applications: dict[str, str] = {}

    def header(self, application: str) -> str:
        """Returns an Authorization header with all rights of an application."""
        secret = secrets.token_hex(32)
        self._applications[secret] = application
        return f"{self.scheme} {secret}"

    def read(self, credential: str, now: float) -> Identity:
        """Finds the application of a credential."""
        application = self._applications.get(credential)
        if application is None:
            raise NotAuthenticated("Invalid credential: only facades make those of this scheme.")
        name = owner_name(application)
        return Identity(frozenset({name}), (), tenant=name)


class SignedCallers:
    """Reads credentials of requests that name an access key, and are signed with its secret.

    They say which key that is. Whether the signature is right a facade finds out before it does anything.
    """

    scheme = "Signed"
    believed = ApplicationKeys.believed

    def __init__(self, applications: Applications) -> None:
        self._keys = ApplicationKeys(applications)
        self._mark = secrets.token_hex(8)

    def header(self, digest: bytes) -> str:
        """Returns an Authorization header with the rights of the key that has this digest."""
        return f"{self.scheme} {self._mark}{digest.hex()}"

    def read(self, credential: str, now: float) -> Identity:
        """Finds the key of a credential."""
        mark, digest = credential[: len(self._mark)], credential[len(self._mark) :]
        if not secrets.compare_digest(mark, self._mark):
            raise NotAuthenticated("Invalid credential: only facades make those of this scheme.")
        return self._keys.find(bytes.fromhex(digest))


class Resource(NamedTuple):
    """One resource of a facade.

    Attributes:
        name: For the metrics.
        pattern: Of its path, after the prefix, as Pyramid has it.
        views: By method; others get :class:`~queuey.web.errors.NoSuchResource`. A function alone reads its query.
    """

    name: str
    pattern: str
    views: Mapping[str, Handler | View]


class Setup(NamedTuple):
    """What all facades of an application are made of.

    Attributes:
        app: The application.
        settings: The table ``facades``.
        secret: From which the secrets of access keys follow; blank: none are known.
        callers: Gives credentials to callers.
        signed: Gives credentials to requests that an access key has signed.
    """

    app: App
    settings: Facades
    secret: bytes
    callers: FacadeCallers
    signed: SignedCallers


class Facade(ABC):
    """One protocol.

    Attributes:
        application: The application that owns the queues.
        spec: How the queues are made that are used and not there, if that does not depend on their names.
        longest_name: Characters of the names of the queues that it makes; None: as many as names usually have.
    """

    spec: ClassVar[QueueSpec] = QueueSpec()
    longest_name: ClassVar[int | None] = None

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
    def sign(self, request: Request) -> None:
        """Puts the caller's credential where version 1 has it: in ``headers["authorization"]`` of the request."""

    @abstractmethod
    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        pass

    def application_of(self, _caller: Caller) -> str:
        """Returns the application whose quota a request counts for."""
        return self.application

    # Requests

    def include(self, config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
        for name, pattern, views in self.resources():
            asking = {
                method: each if isinstance(each, View) else View(each, asks=True) for method, each in views.items()
            }
            config.add_resource(name, self._prefix + pattern, asking, original=True)

    def admit(self, request: Request) -> bool:
        """Prepares a request if it is one to this facade: its credential, and the form of its errors."""
        if not self.owns(request.path):
            return False
        request.facade = self
        self.sign(request)
        return True

    def owns(self, path: str) -> bool:
        return f"{path}/".startswith(f"{self._prefix}/") and not path.startswith("/__")

    # Queues

    def where(self, match: Match) -> Match:
        """Returns application and queue of a path. A protocol whose names differ from ours translates them here."""
        return {"app": self.application, "queue": match["queue"]}

    def spec_of(self, match: Match) -> QueueSpec:
        """Returns how a queue is made that is used and not there."""
        return self.spec

    async def apply(self, request: Request, match: Match, action: Action, call: Callable[[Queue], Awaitable[T]]) -> T:
        """Makes a call with a queue, which is made if it is not there.

        Raises:
            NotAuthenticated, NotAllowed: The caller may not do this; to make a queue it needs what ``send`` needs.
            InvalidRequest: A queue cannot have this name.
            StoreBusy: Others delete the queue again and again.
        """
        where = self.where(match)
        for _ in range(ATTEMPTS):
            try:
                return await (await self._authorization.admit(request, where, action)).apply(call)
            except QueueNotFound:
                await request.in_pool(partial(self.make, request, match))
        raise _busy(match)

    def make(self, request: Request, match: Match) -> Queue:
        """Makes a queue, or finds the one of this name, whatever its options. Raises as :meth:`apply`."""
        name = self.where(match)["queue"]
        patterns = self._authorization.patterns(request, self.application, "send")
        if not any(matches(pattern, name) for pattern in patterns):
            raise NotAllowed(f"The credential uses only queues that match {', '.join(patterns)}.")
        return self.make_for(match)

    def make_for(self, match: Match) -> Queue:
        """Does what :meth:`make` does for a caller that may use a queue of this name."""
        where, queues = self.where(match), self._service.queues
        spec = queues.claimable(self.spec_of(match))
        try:
            return queues.create(where["app"], where["queue"], spec, longest=self.longest_name)[0]
        except QueueExists as error:
            return error.queue


class OpenFacade(Facade):
    """A protocol without credentials: whoever reaches it has all the rights of the application.

    Not so the web pages of others, which reach it through a browser. Its queues have the names that ours have.
    """

    def __init__(self, setup: Setup, prefix: str) -> None:
        super().__init__(setup, prefix)
        self._header = setup.callers.header(self.application)
        self._hosts = frozenset((setup.settings.hosts or "").lower().split())

    def sign(self, request: Request) -> None:
        if (reason := self._refusal(request)) is not None:
            request.headers.pop("authorization", None)
            request.refused = NotAllowed(reason)
        else:
            request.headers["authorization"] = self._header

    @abstractmethod
    def refuse(self, reason: str) -> Exception:
        """Returns the error for a name that no queue can have."""

    def where(self, match: Match) -> Match:
        if (reason := queue_name_error(match["queue"], self._service.limits.max_queue_name)) is not None:
            raise self.refuse(reason)
        return super().where(match)

    def _refusal(self, request: Request) -> str | None:
        """Returns why a request may come from a web page of another site; None if it does not."""
        # Anybody can give a name of a domain of theirs this machine's address. Then their page is of the same origin,
        # and the name in Host is the only sign of it.
        host = request.headers.get("host", "")
        if "." in host and not _ADDRESS.fullmatch(host) and host.partition(":")[0].lower() not in self._hosts:
            return (
                f'The host "{show(host)}" is not in the setting facades.hosts, and no key is asked for. '
                "Add its name there, or use the service's address."
            )
        if _is_of_another_site(request):
            return "A browser sends it for a page of another site. Send it from a program."
        return None


def as_uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def message_id(location: Location) -> str:
    """Returns the id of a message: its own as a UUID, and the partition if that is not the first."""
    partition, position = location
    text = as_uuid(ids.to_hex(position))
    return text if partition == 1 else f"{text}-{partition}"


def _is_of_another_site(request: Request) -> bool:
    """Returns whether a browser sends a request for a page that is not the service's own. Programs say nothing."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"none", "same-origin"}
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


def _busy(match: Match) -> StoreBusy:
    return StoreBusy(f"Queue {match['queue']!r} was deleted again and again while this request ran. Try again.")
