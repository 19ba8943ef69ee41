"""OpenTelemetry spans, from the one that sends a message to the one that handles it; and none when tracing is off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from queuey.client import ClientError, Outgoing, disable_tracing, enable_tracing
from queuey.client.calls import tracing

Queuey = Any
"""A client of either kind."""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Records the spans of clients in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    enable_tracing(provider)
    yield exporter
    disable_tracing()


def find_spans(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name.startswith(name)]


def attribute_of(span: ReadableSpan, attribute: str) -> Any:  # noqa: ANN401 - a number or a text
    assert span.attributes is not None
    return span.attributes[attribute]


def test_a_handler_belongs_to_the_trace_of_its_message(queuey: Queuey, queue: str, spans: InMemorySpanExporter) -> None:
    """Sent alone or in a batch, a message carries the context of its send, which is the parent of its handler's."""
    queuey.send(queue, "alone", headers={"shop": "berlin"})
    queuey.send_many(queue, ["one", Outgoing("two", headers={"shop": "rome"})])
    contexts: list[Any] = []

    def handle(job: Any) -> None:  # noqa: ANN401 - of either kind
        contexts.append(job.message)

    queuey.job_queue(queue).run(handle, idle=0)
    sent = {span.context.span_id: span for span in find_spans(spans, "send")}
    assert [attribute_of(span, "messaging.batch.message_count") for span in sent.values()] == [1, 2]
    handled = find_spans(spans, "process")
    assert len(handled) == 3
    assert all(span.parent is not None and span.parent.span_id in sent for span in handled)
    assert {span.context.trace_id for span in handled} == {span.context.trace_id for span in sent.values()}
    assert {attribute_of(span, "messaging.destination.name") for span in handled} == {queue}
    assert sorted(message.headers.get("shop", "") for message in contexts) == ["", "berlin", "rome"]
    assert find_spans(spans, "receive")
    queuey.job_queue(queue).ack([])
    queuey.send(queue, "more")
    queuey.job_queue(queue).ack(queuey.job_queue(queue).receive(1))
    assert find_spans(spans, "settle")


def test_errors_end_spans(queuey: Queuey, spans: InMemorySpanExporter) -> None:
    """A call that fails is a span with an error."""
    with pytest.raises(ClientError):
        queuey.send("nowhere-at-all", "x")
    [span] = find_spans(spans, "send")
    assert span.status.status_code is StatusCode.ERROR


def test_what_a_program_says_is_kept(queuey: Queuey, queue: str, spans: InMemorySpanExporter) -> None:
    """A context that the program gives, headers without room for one, and sends under its own key stay as given."""
    own = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    full = {f"h{number}": "x" for number in range(tracing.MAX_HEADERS)}
    for headers in (own, full):
        receipt = queuey.send(queue, "x", headers=headers)
        [message] = queuey.get(queue, receipt)
        assert message.headers == headers
    receipts = {queuey.send(queue, "x", idempotency_key="mine").id for _ in range(2)}
    assert len(receipts) == 1
    queuey.send_many(queue, ["x"], idempotency_key="ours")
    queuey.send_many(queue, ["x"], idempotency_key="ours")


def test_nothing_is_done_when_it_is_off(queuey: Queuey, queue: str) -> None:
    """When tracing is off, calls have no spans, and messages only the caller's headers."""
    receipt = queuey.send(queue, "x")
    [message] = queuey.get(queue, receipt)
    assert message.headers == {}
    assert tracing.start_call_span("send", queue) is None
