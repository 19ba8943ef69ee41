"""The part of a client that all its calls share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec import structs

from queuey.client._async.authorization import AsyncAuthorizationHeader
from queuey.client.calls import send_calls
from queuey.client.calls.call import MAX_ANSWER, Call, Seconds, seconds
from queuey.client.claims.renewers import AsyncClaimRenewer
from queuey.client.credentials.lookup import find_access, find_credential
from queuey.client.credentials.tokens import TokenScheme
from queuey.client.http.attempts import AsyncTiming, Attempts
from queuey.client.http.retry import RetryPolicy
from queuey.client.http.servers import ServerChoice
from queuey.client.receipts import open_journal

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    import httpx2

    from queuey.client.credentials.token_sources import AskToken

T = TypeVar("T")


class AsyncCaller:
    """Sends calls to the service: servers, credential, connections, claims to renew. Its arguments are the client's."""

    def __init__(  # noqa: PLR0913 - each is a separate choice, by keyword
        self,
        url: str | Iterable[str] | None = None,
        *,
        key: str | None = None,
        token: str | AskToken | None = None,
        token_file: str | Path | None = None,
        token_command: str | Sequence[str] | None = None,
        scheme: TokenScheme = "Bearer",
        application: str | None = None,
        verify: bool | str | Path | ssl.SSLContext = True,
        timeout: Seconds = 10.0,
        retry: RetryPolicy | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        timing: AsyncTiming | None = None,
        receipts: str | Path | None = None,
        max_answer: int = MAX_ANSWER,
        idempotent: bool = True,
    ) -> None:
        from queuey.client._async.sender import AsyncSender  # noqa: PLC0415 - httpx2 is loaded when it is first needed

        credential = find_credential(
            key, token=token, token_file=token_file, token_command=token_command, scheme=scheme
        )
        access = find_access(url, credential, application=application)
        self.servers = access.servers
        self._timeout = seconds(timeout)
        self._policy = retry or RetryPolicy()
        self._new_key = send_calls.key_maker(self._policy, idempotent=idempotent)
        self._timing = timing or AsyncTiming()
        self._choice = ServerChoice(
            access.servers,
            cool_down=self._policy.cool_down,
            clock=self._timing.clock,
            draw=self._timing.draw,
        )
        self._sender = AsyncSender(access.servers, verify, max_answer, transport)
        self._authorization = AsyncAuthorizationHeader(access.credential)
        self._journal = open_journal(receipts, access.servers[0].application)
        self._renewer = AsyncClaimRenewer(self._run, self._timing.clock)

    def __repr__(self) -> str:
        """Names the servers and leaves the key out."""
        return f"{type(self).__name__}({', '.join(server.base for server in self.servers)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections and the file of receipts. Jobs that loops still hold are released first."""
        try:
            await self._renewer.close()
        finally:
            await self._sender.close()
            self._journal.close()

    @property
    def application(self) -> str:
        """The application of the client's queues."""
        return self.servers[0].application

    @property
    def scheme(self) -> str | None:
        """The scheme of its credential: ``Application`` (a key), ``Bearer`` or ``BrowserID``; None: it has none."""
        return self._authorization.scheme

    async def _run(self, call: Call[T], within: float | None = None) -> T:
        """Sends a call until it is answered or may not be sent again, for ``within`` seconds at most."""
        if call.span is not None:
            with call.span:
                return await self._run(structs.replace(call, span=None), within)
        policy, timeout = self._policy.limited(within), self._timeout if within is None else min(self._timeout, within)
        attempts = Attempts(call, self._choice, policy, timeout, self._timing)
        return await self._sender.send_until_answered(call, attempts, self._authorization, self._timing.sleep)
