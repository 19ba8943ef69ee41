"""One view per resource, which looks at the method: cheaper than one view per method, and everything else is 404."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from queuey.errors import QueueChanged
from queuey.metrics import Metrics
from queuey.web.answers import Answer, Environ
from queuey.web.errors import NoSuchResource, error_answer
from queuey.web.later import Begin, Later, WouldBlock
from queuey.web.paths import check_path

Match = dict[str, str]
"""The parts of the path that a route names."""
Handler = Callable[[Environ, Match], Answer]
Begun = tuple[Begin, Callable[[Any], Answer]]
EarlyHandler = Callable[[Environ, Match], Begun]
"""Prepares a request's work without blocking; gives how to begin it, and how to answer with its result."""


def _no_such_method(environ: Environ, match: Match) -> Answer:
    raise NoSuchResource("The resource does not have this method.")


class Endpoint:
    """Answers for one resource, counts what it answers, and turns errors into answers."""

    __slots__ = ("_at_once", "_metrics", "_name", "handlers", "look_up")

    def __init__(
        self,
        name: str,
        metrics: Metrics,
        handlers: Mapping[str, Handler],
        at_once: Mapping[str, EarlyHandler] | None = None,
        look_up: Callable[[Environ, Match], None] | None = None,
    ) -> None:
        """Names a resource and its methods.

        Args:
            name: For the metrics.
            metrics: Where requests are counted.
            handlers: By method.
            at_once: By method, handlers that never block, for :meth:`begin`.
            look_up: Blocks in their stead: brings into memory what they need.
        """
        self.handlers = dict(handlers)
        self._at_once = dict(at_once or {})
        self.look_up = look_up
        self._metrics = metrics
        self._name = name

    def __call__(self, context: Any, request: Any) -> Answer:  # noqa: ANN401 - Pyramid's objects have no types
        """Is called by Pyramid."""
        start = perf_counter()
        environ: Environ = request.environ
        try:
            check_path(environ)
            answer = self.handlers.get(environ["REQUEST_METHOD"], _no_such_method)(environ, request.matchdict)
        except Exception as error:  # noqa: BLE001 - an error of any kind must become an answer
            answer = error_answer(error, environ)
        self._metrics.observe(self._name, answer.status, perf_counter() - start)
        return answer

    def begin(self, environ: Environ, match: Match) -> Answer | Later:
        """Answers without blocking, at once or later.

        Raises:
            WouldBlock: The request has to be handled in a thread.
        """
        start = perf_counter()
        handler = self._at_once.get(environ["REQUEST_METHOD"])
        if handler is None:
            raise WouldBlock
        try:
            begin, answer_with = handler(environ, match)
        except WouldBlock:
            raise
        except Exception as error:  # noqa: BLE001 - an error of any kind must become an answer
            answer = error_answer(error, environ)
            self._metrics.observe(self._name, answer.status, perf_counter() - start)
            return answer

        def finish(value: object, error: Exception | None) -> Answer:
            if isinstance(error, QueueChanged) or (value is None and error is None):
                raise WouldBlock
            answer = answer_with(value) if error is None else error_answer(error, environ)
            self._metrics.observe(self._name, answer.status, perf_counter() - start)
            return answer

        return Later(begin, finish)
