"""Posts are parsed in a fast way if they are plain. The drafts and the errors are those of the full parsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queuey.messages import message_views
from queuey.messages.message_views import parse_batch, parse_single
from queuey.messages.posts import AnyDraft
from queuey.model.errors import InvalidRequest
from queuey.model.messages import Queue
from queuey.runtime.limits import Limits
from tests.replacing import replace_in
from tests.web.gateway_calls import blank_request

LIMITS = Limits(max_batch=4, max_body=100)
QUEUE = Queue(application="a", name="q", uid=1, qid=1, partitions=3)

texts = st.one_of(st.text(max_size=30), st.sampled_from(["", "x" * 25, "x" * 26, "x" * 101, "\ud800", "ü" * 60, "\0"]))
numbers: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, 1, 3, 4, -1, 5.0, 1.5, "2", " 2 ", "x", True, 10**10, 10**30, [], {}]
)
values = st.one_of(texts, numbers, st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))
items = st.fixed_dictionaries(
    {},
    optional={
        "body": values,
        "ttl": numbers,
        "partition": numbers,
        "content_type": st.sampled_from([None, "text/plain", "a\nb", 5]),
        "headers": st.sampled_from([None, {}, {"a": "b"}, {"A B": "c"}, 5]),
        "delay": numbers,
        "message_key": st.sampled_from([None, "k", "", 5]),
        "encoding": st.sampled_from([None, "base64", "json"]),
        "unknown": numbers,
    },
)
batches = st.one_of(
    st.fixed_dictionaries({"messages": st.lists(items, max_size=5)}, optional={"more": numbers}),
    st.fixed_dictionaries({"messages": values}),
    values,
)
plain = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"body": texts}, optional={"ttl": numbers, "partition": numbers}))}
)


def outcome(parse: Callable[[], Sequence[AnyDraft]]) -> list[Any]:
    try:
        drafts = parse()
    except InvalidRequest as error:
        # What is wrong in malformed JSON, decoders tell in their own words.
        return [type(error), error.code, {name: text.partition("malformed")[0] for name, text in error.fields.items()}]
    return [(d.body, d.ttl, d.partition, d.meta, d.delay, d.key) for d in drafts]


@given(st.one_of(batches, plain).map(json.dumps).map(str.encode) | st.binary(max_size=20))
def test_a_batch(body: bytes) -> None:
    """Whatever a batch has, it is parsed as item by item, with the same warnings."""
    requests = [blank_request() for _ in range(2)]
    fast = outcome(lambda: parse_batch(body, LIMITS, QUEUE, requests[0]))
    assert fast == outcome(lambda: message_views._parse_loose_batch(body, LIMITS, QUEUE, requests[1]))
    assert requests[0].ignored == requests[1].ignored


@given(
    st.one_of(texts.map(lambda text: text.encode(errors="surrogatepass")), st.binary(max_size=5)),
    st.dictionaries(
        st.sampled_from(
            ["content_type", "x_ttl", "x_partition", "x_delay", "x_message_key", "x_encoding", "x_header_a"]
        ),
        st.sampled_from(["", "1", "3", "9", "text/plain", "a\nb", "json", "x" * 300]),
        max_size=3,
    ),
    st.sampled_from([QUEUE, None]),
)
def test_a_single_message(body: bytes, headers: dict[str, str], queue: Queue | None) -> None:
    """A message is parsed as with a content type that was not seen before."""
    results = []
    for cached in ({}, {kind: message_views._make_meta(kind, None) for kind in ("text/plain", "1", "json")}):
        request = blank_request(**headers)
        request.has_own_headers = "x_header_a" in headers
        with replace_in(message_views, message_views._types, cached):
            results.append(outcome(lambda request=request: [parse_single(request, body, LIMITS, queue)]))  # type: ignore[misc]
    assert results[0] == results[1]
