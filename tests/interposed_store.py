"""Stands between the service and its store, so that a test can fail, hold or watch calls of the store."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from queuey.storage import Store
from queuey.storage.calls import in_thread

CONTRACTS = {str(field.type): field.name for field in dataclasses.fields(Store)}
"""The attribute of a store that has each contract, by the name of its class."""


class InterposedStore:
    """Passes everything on to a store, except what a test puts in the place of a method.

    Args:
        store: The real one.

    Attributes:
        waits_for_network, ids_follow_clocks: What the service is told instead of the store's own word.
    """

    def __init__(self, store: Store) -> None:
        self.waits_for_network = store.waits_for_network
        self.ids_follow_clocks = store.ids_follow_clocks
        self._store = store
        self._instead: dict[str, Callable[..., Any]] = {}

    @property
    def store(self) -> Store:
        """The store to hand to the service."""
        return cast("Store", self)

    def instead(self, method: Callable[..., Any], by: Callable[..., Any]) -> None:
        """Calls ``by`` in the place of a method of a contract, from now on: ``instead(Messages.append, fail)``.

        In the place of a coroutine it may be one, or block: then it is called in a thread that may wait.
        """
        self._instead[method.__qualname__] = _awaited(by) if inspect.iscoroutinefunction(method) else by

    def before(self, method: Callable[..., Any], first: Callable[[], object]) -> None:
        """Calls ``first``, which may be a coroutine, each time before a method does its work, and where it does it."""
        owner, _, name = method.__qualname__.partition(".")
        contract: Any = getattr(self._store, CONTRACTS[owner]) if owner in CONTRACTS else self._store
        real = getattr(contract, name)

        async def both(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what the method returns
            if inspect.isawaitable(waiting := first()):
                await waiting
            return await real(*args, **kwargs)

        def at_once(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
            first()
            return real(*args, **kwargs)

        self._instead[method.__qualname__] = both if inspect.iscoroutinefunction(method) else at_once

    def passing(self, method: Callable[..., Any]) -> None:
        """Calls the method itself again."""
        del self._instead[method.__qualname__]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of the store
        value = getattr(self._store, name)
        owner = next((owner for owner, attribute in CONTRACTS.items() if attribute == name), None)
        if owner is not None:
            return _Contract(owner, value, self._instead)
        return self._instead.get(f"Store.{name}") or value


class _Contract:
    """One contract of a store, some of whose methods are replaced."""

    def __init__(self, name: str, contract: object, instead: dict[str, Callable[..., Any]]) -> None:
        self._name = name
        self._contract = contract
        self._instead = instead

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of the contract
        return self._instead.get(f"{self._name}.{name}") or getattr(self._contract, name)


def _awaited(by: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what it returns
        if inspect.iscoroutinefunction(by):
            return await by(*args, **kwargs)
        return await in_thread(partial(by, *args, **kwargs))

    return call
