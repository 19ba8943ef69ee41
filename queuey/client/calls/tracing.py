"""OpenTelemetry spans for sends, claims, acknowledgements and handlers, while tracing is on.

A message that is sent while tracing is on has a ``traceparent`` header (W3C Trace Context). The span of its handler is
a child of the span of the send, in any process. Names and attributes follow OpenTelemetry's messaging conventions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from queuey.client.errors import InvalidArgument
from queuey.model.extras import require

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

    from queuey.client.results import Message
    from queuey.model.task_calls import ShownCall

MAX_HEADERS = 16

Operation = Literal["send", "receive", "settle", "process"]

_tracer: Tracer | None = None


def enable_tracing(provider: TracerProvider | None = None) -> None:
    """Starts to report spans in this process.

    Args:
        provider: Provides the tracer. By default the global provider that the program or ``opentelemetry-instrument``
            has set.

    Raises:
        InvalidArgument: The package opentelemetry-api is not installed.

    Example:
        >>> from queuey.client import disable_tracing, enable_tracing
        >>> enable_tracing()
        >>> receipt = client.send("orders", "traced")
        >>> disable_tracing()
    """
    global _tracer  # noqa: PLW0603 - one tracer per process, like OpenTelemetry's global provider
    require("traces", "Tracing", InvalidArgument)
    from opentelemetry import trace  # noqa: PLC0415 - an extra

    _tracer = trace.get_tracer("queuey", tracer_provider=provider)


def disable_tracing() -> None:
    """Stops reporting spans; see :func:`enable_tracing`.

    Example:
        >>> from queuey.client import disable_tracing
        >>> disable_tracing()
    """
    global _tracer  # noqa: PLW0603 - as above
    _tracer = None


def is_enabled() -> bool:
    return _tracer is not None


class CallSpan:
    """A span that ends when its ``with`` block ends. It records an error that ends the block."""

    def __init__(self, span: Any) -> None:  # noqa: ANN401 - of OpenTelemetry
        self._span = span

    def add_to_headers(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Returns a message's headers with the context of this span, unless they are full or have one already."""
        from opentelemetry import trace  # noqa: PLC0415 - already loaded
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        own_headers = dict(headers or {})
        if len(own_headers) >= MAX_HEADERS or any(name.lower() == "traceparent" for name in own_headers):
            return headers
        context: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(context, trace.set_span_in_context(self._span))
        return own_headers | {"traceparent": context["traceparent"]} if "traceparent" in context else headers

    def describe(self, operation: Operation, queue: str, count: int) -> CallSpan:
        self._span.update_name(f"{operation} {queue}")
        self._span.set_attributes(_make_attributes(operation, queue) | {"messaging.batch.message_count": count})
        return self

    def __enter__(self) -> None:
        """Does nothing: the span has already started."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - already loaded

            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, str(error))
        self._span.end()


def start_call_span(operation: Operation, queue: str = "", count: int = 1) -> CallSpan | None:
    """Starts the span of a call; returns None while tracing is off.

    Without a queue, the span has no attributes yet: the caller sets them with :meth:`CallSpan.describe`.
    """
    if _tracer is None:
        return None
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - already loaded

    kind = SpanKind.PRODUCER if operation == "send" else SpanKind.CLIENT
    span = CallSpan(_tracer.start_span(operation, kind=kind))
    return span.describe(operation, queue, count) if queue else span


@contextmanager
def handling(queue: str, message: Message, call: ShownCall | None = None) -> Iterator[None]:
    """Runs a handler in a span that continues the message's trace, if tracing is on.

    Args:
        queue: The queue of the message.
        message: The message.
        call: The task that the message calls and its redacted arguments, or None if it does not call a task.
    """
    if _tracer is None:
        yield
        return
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - already loaded
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    parent = TraceContextTextMapPropagator().extract(message.headers)
    attributes = _make_attributes("process", queue) | {"messaging.message.id": message.id}
    if call is not None:
        attributes |= {"messaging.queuey.task.name": call.task, "messaging.queuey.task.arguments": call.arguments}
    with _tracer.start_as_current_span(
        f"process {queue}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes
    ):
        yield


def _make_attributes(operation: Operation, queue: str) -> dict[str, str | int]:
    return {
        "messaging.system": "queuey",
        "messaging.destination.name": queue,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
    }
