"""Entering the context that handlers share: made once for a worker (with processes: for each of them)."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

from qdo.errors import HandlerError
from qdo.worker.handlers import Context


async def enter(factory: Context | None, entered: AsyncExitStack) -> Any:  # noqa: ANN401 - whatever handlers share
    """Calls the factory and enters what it gives; returns what goes to the handlers.

    Args:
        factory: Gives a context manager, plain or async, or a plain value. None: handlers share an empty dict.
        entered: Leaves it.

    Raises:
        HandlerError: It failed.
    """
    if factory is None:
        return {}
    try:
        made: Any = factory()
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            return await entered.enter_async_context(made)
        if isinstance(made, AbstractContextManager):
            return entered.enter_context(made)
    except Exception as error:
        raise HandlerError(f"the context cannot be made: {type(error).__name__}: {error}") from error
    return made
