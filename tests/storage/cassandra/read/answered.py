"""Runs coroutines that ask a driver as functions of the answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, TypeVar

from queuey.model.errors import StoreUnavailable

T = TypeVar("T")


class Asking:
    """Replaces the driver; requests are answered from outside."""

    @coroutine
    def ask_all(self, requests: Sequence[Any]) -> Generator[Any, Any, list[Any]]:
        answers: list[Any] = yield requests
        return answers

    async def ask(self, request: Any) -> Any:  # noqa: ANN401 - rows
        return (await self.ask_all([request]))[0]


ASKING: Any = Asking()


def run_with_answers(work: Coroutine[Any, Any, T], answer: Callable[[Any], Any]) -> T:
    """Runs a coroutine to its end; a function answers each request, or raises its error."""
    requests = work.send(None)
    while True:
        try:
            try:
                answers = [answer(request) for request in requests]
            except StoreUnavailable as error:
                requests = work.throw(error)
            else:
                requests = work.send(answers)
        except StopIteration as ended:
            result: T = ended.value
            return result
