"""A wrapper around a store, so that a test can fail, hold or watch calls of the store."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn, cast

from queuey.storage import Store
from queuey.storage.deadlines import in_thread

CONTRACTS = {str(field.type): field.name for field in dataclasses.fields(Store)}
"""The attribute of a store for each contract, by the name of the contract's class."""


class Killed(Exception):
    """The process has stopped here."""


class InterposedStore:
    """Forwards all calls to a store, except of methods that a test replaces.

    Args:
        store: The real store.

    Attributes:
        waits_for_network, ids_follow_clocks: Override those of the store.
        real: The real store.
    """

    def __init__(self, store: Store) -> None:
        self.waits_for_network = store.waits_for_network
        self.ids_follow_clocks = store.ids_follow_clocks
        self.real = store
        self._instead: dict[str, Callable[..., Any]] = {}

    @property
    def store(self) -> Store:
        return cast("Store", self)

    def instead(self, method: Callable[..., Any], by: Callable[..., Any]) -> None:
        """Replaces a method of a contract from now on: ``instead(Messages.append, fail)``.

        The replacement of a coroutine function may be one, or block: then it is called in a thread that may wait.
        """
        self._instead[method.__qualname__] = _as_coroutine_function(by) if inspect.iscoroutinefunction(method) else by

    def fail(self, method: Callable[..., Any], error: Exception) -> None:
        """Raises the error at each call of a method of a contract from now on."""

        def raise_error(*_: object, **__: object) -> NoReturn:
            raise error

        self.instead(method, raise_error)

    def before(self, method: Callable[..., Any], first: Callable[[], object]) -> None:
        """Calls ``first``, which may be a coroutine function, before each call of the method, in the same thread.

        An earlier replacement of the method no longer counts.
        """
        real = self.method(method)

        async def both(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what the method returns
            if inspect.isawaitable(waiting := first()):
                await waiting
            return await real(*args, **kwargs)

        def at_once(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
            first()
            return real(*args, **kwargs)

        self._instead[method.__qualname__] = both if inspect.iscoroutinefunction(method) else at_once

    def kill_at(self, number: int, methods: Iterable[Callable[..., Any]], *, after: bool) -> list[str]:
        """Ends the process at one of its calls of some methods, counted from 1: before the call, or after it.

        That call and all later ones raise :class:`Killed`. Returns the names of the calls, to which each is added.
        """
        calls: list[str] = []

        def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
            real = self.method(method)

            def begins() -> bool:
                """Returns whether this call is the last one."""
                calls.append(method.__name__)
                if len(calls) > number or (len(calls) == number and not after):
                    raise Killed
                return len(calls) == number

            def at_once(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what the method returns
                is_last, result = begins(), real(*args, **kwargs)
                if is_last:
                    raise Killed
                return result

            async def awaited(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
                is_last, result = begins(), await real(*args, **kwargs)
                if is_last:
                    raise Killed
                return result

            return awaited if inspect.iscoroutinefunction(method) else at_once

        for method in methods:
            self._instead[method.__qualname__] = wrap(method)
        return calls

    def method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method of a contract as the real store has it."""
        owner, _, name = method.__qualname__.partition(".")
        contract = getattr(self.real, CONTRACTS[owner]) if owner in CONTRACTS else self.real
        real: Callable[..., Any] = getattr(contract, name)
        return real

    def restore(self, method: Callable[..., Any]) -> None:
        del self._instead[method.__qualname__]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of the store
        value = getattr(self.real, name)
        owner = next((owner for owner, attribute in CONTRACTS.items() if attribute == name), None)
        if owner is not None:
            return _Contract(owner, value, self._instead)
        return self._instead.get(f"Store.{name}") or value


class _Contract:
    """One contract of a store, with some methods replaced."""

    def __init__(self, name: str, contract: object, instead: dict[str, Callable[..., Any]]) -> None:
        self._name = name
        self._contract = contract
        self._instead = instead

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of the contract
        return self._instead.get(f"{self._name}.{name}") or getattr(self._contract, name)


def _as_coroutine_function(by: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what it returns
        if inspect.iscoroutinefunction(by):
            return await by(*args, **kwargs)
        return await in_thread(partial(by, *args, **kwargs))

    return call
