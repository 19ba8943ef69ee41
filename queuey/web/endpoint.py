"""One view per resource, which looks at the method: cheaper than one view per method, and everything else is 404."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from queuey.metrics import Metrics
from queuey.web.answers import Answer, Environ
from queuey.web.errors import NoSuchResource, error_answer

Match = dict[str, str]
"""The parts of the path that a route names."""
Handler = Callable[[Environ, Match], Answer]


def _no_such_method(environ: Environ, match: Match) -> Answer:
    raise NoSuchResource("The resource does not have this method.")


class Endpoint:
    """Answers for one resource, counts what it answers, and turns errors into answers."""

    __slots__ = ("_metrics", "_name", "handlers")

    def __init__(self, name: str, metrics: Metrics, handlers: Mapping[str, Handler]) -> None:
        self.handlers = dict(handlers)
        self._metrics = metrics
        self._name = name

    def __call__(self, context: Any, request: Any) -> Answer:  # noqa: ANN401 - Pyramid's objects have no types
        """Is called by Pyramid."""
        start = perf_counter()
        environ: Environ = request.environ
        try:
            answer = self.handlers.get(environ["REQUEST_METHOD"], _no_such_method)(environ, request.matchdict)
        except Exception as error:  # noqa: BLE001 - an error of any kind must become an answer
            answer = error_answer(error, environ)
        self._metrics.observe(self._name, answer.status, perf_counter() - start)
        return answer
