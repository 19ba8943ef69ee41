"""The part of a client that all its calls share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from queuey.client.calls.call import MAX_ANSWER, Seconds, seconds
from queuey.client.calls.send_calls import new_key
from queuey.client.claims.renewers import AsyncClaimRenewer
from queuey.client.credentials.lookup import find_access, find_credential
from queuey.client.credentials.tokens import AskToken, TokenScheme
from queuey.client.http.attempts import AsyncTiming, RetryPolicy
from queuey.client.receipts import open_journal

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    import httpx2


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
        policy, timing = retry or RetryPolicy(), timing or AsyncTiming()
        self.servers = access.servers
        self._new_key = new_key if idempotent and policy.rounds > 1 else lambda: None
        self._sender = AsyncSender(
            access.servers,
            access.credential,
            policy,
            timing,
            seconds(timeout),
            verify=verify,
            max_answer=max_answer,
            transport=transport,
        )
        self._journal = open_journal(receipts, self.application)
        self._renewer = AsyncClaimRenewer(self._sender.run, timing.clock)

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
        return self._sender.authorization.scheme
