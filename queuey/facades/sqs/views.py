"""The facade of Amazon SQS: one view, which authenticates the caller and dispatches the action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import getrandbits
from time import time

import msgspec

from queuey.facades.facade import Facade, Resource, Setup, as_uuid
from queuey.facades.settings import MAX_FACADE_BODY
from queuey.facades.sqs import access_keys, signatures
from queuey.facades.sqs.errors import SqsError, as_sqs
from queuey.facades.sqs.message_actions import MessageActions
from queuey.facades.sqs.protocols import make_answer, make_error_answer, read_call
from queuey.facades.sqs.queue_actions import QueueActions
from queuey.facades.sqs.requests import Result, SignedRequest
from queuey.facades.sqs.signatures import Signature
from queuey.model.errors import SettingsError
from queuey.model.rights import Caller, application_of_owner
from queuey.web.endpoint import Match, View
from queuey.web.errors import NoSuchResource
from queuey.web.requests import Request, read_body
from queuey.web.responses import Response


class _SignedState(msgspec.Struct):
    """Parsed data of a request that the facade keeps until its view runs."""

    signature: Signature


class SqsFacade(Facade):
    """The calls of Amazon SQS. An access key signs each request, and the view verifies its signature of the body.

    A request counts for the application of its key. One without a well-formed signature is refused by its view.

    Raises:
        SettingsError: The secret is blank.
    """

    def __init__(self, setup: Setup, prefix: str) -> None:
        super().__init__(setup, prefix)
        if not setup.secret:
            raise SettingsError("The facade of SQS needs a secret, from which it derives those of its access keys.")
        self._callers = setup.signed
        self._secret = setup.secret
        messages = MessageActions(self._service, self._authorization)
        queues = QueueActions(self._service, self._authorization)
        self._actions: dict[str, Callable[[SignedRequest], Awaitable[Result]]] = {
            "SendMessage": messages.send,
            "SendMessageBatch": messages.send_batch,
            "ReceiveMessage": messages.receive,
            "DeleteMessage": messages.delete,
            "DeleteMessageBatch": messages.delete_batch,
            "ChangeMessageVisibility": messages.change_visibility,
            "ChangeMessageVisibilityBatch": messages.change_visibility_batch,
            "AddPermission": queues.refuse_permission_change,
            "CancelMessageMoveTask": queues.cancel_move,
            "CreateQueue": queues.create,
            "DeleteQueue": queues.delete,
            "GetQueueAttributes": queues.get_attributes,
            "GetQueueUrl": queues.get_url,
            "ListDeadLetterSourceQueues": queues.list_sources,
            "ListMessageMoveTasks": queues.list_moves,
            "ListQueues": queues.list_queues,
            "ListQueueTags": queues.list_tags,
            "PurgeQueue": queues.purge,
            "RemovePermission": queues.refuse_permission_change,
            "SetQueueAttributes": queues.set_attributes,
            "StartMessageMoveTask": queues.start_move,
            "TagQueue": queues.add_tags,
            "UntagQueue": queues.remove_tags,
        }

    def resources(self) -> list[Resource]:
        view = View(self.answer, reads_query=True, ends_with_client=True)
        views = {"GET": view, "POST": view}
        return [
            Resource("sqs", "{_:/?}" if self._prefix else "/", views),
            Resource("sqs.queue", "/{account:[^/]+}/{queue:[^/]+}{rest:/?}", views),
        ]

    def set_credential(self, request: Request) -> None:
        # Sets the credential of the access key that has signed the request. The signature is verified later; a
        # request without one is refused by its view.
        try:
            signature = signatures.read_signature(request)
        except SqsError as error:
            request.headers.pop("authorization", None)
            request.credential_error = error
        else:
            request.facade_state = _SignedState(signature)
            request.verify = self._verify
            request.headers["authorization"] = self._callers.make_header(access_keys.digest_of(signature.access_key))

    def _verify(self, request: Request) -> None:
        signature: Signature = request.facade_state.signature  # type: ignore[attr-defined] # see set_credential
        secret = access_keys.secret_of(self._secret, signature.access_key)
        signatures.verify(signature, request, read_body(request, MAX_FACADE_BODY), secret, time())
        request.verify = None

    def application_of(self, caller: Caller) -> str:
        return application_of_owner(caller.tenant)

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        return make_error_answer(request, as_sqs(error, status, text), as_uuid(f"{getrandbits(128):032x}"))

    async def answer(self, request: Request, match: Match) -> Response:
        """Identifies the caller, verifies the signature unless that is done, and carries out the action.

        Raises:
            NoSuchResource: The path is not one of the facade's.
            SqsError: The signature is not valid, or the request is malformed.
        """
        caller = await self._authorization.identify(request)
        state = request.facade_state
        if not isinstance(
            state, _SignedState
        ):  # Not prepared by `set_credential`: paths that begin with "/__" are the service's.
            raise NoSuchResource("The resource could not be found.")
        if request.verify is not None:
            request.verify(request)
        call = await request.parse_body(partial(read_call, request, request.body or b""))
        application, queue = application_of_owner(caller.tenant), match.get("queue", "")
        signed = SignedRequest(request, call, application, state.signature.region, self._prefix, queue)
        name = call.action
        action = self._actions.get(name)
        if action is None:
            raise SqsError("InvalidAction", f"The action {name[:100]!r} is not valid for this endpoint.")
        result = await action(signed)
        # A request id for logs, from getrandbits: a system call would take 10 microseconds.
        return make_answer(request, name, result, as_uuid(f"{getrandbits(128):032x}"))
