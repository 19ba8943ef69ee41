"""How requests are routed and what is sent again.

The driver's own retry policy sends any statement again when a connection breaks, lightweight transactions included.
This one never sends a statement again that is not idempotent, and others once, to another node.
"""

from __future__ import annotations

from typing import Any

from cassandra.cluster import ExecutionProfile
from cassandra.policies import (
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    LoadBalancingPolicy,
    NoSpeculativeExecutionPolicy,
    RetryPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from queuey.storage.cassandra.options import CassandraOptions

Decision = tuple[int, None]


class OnlyIdempotent(RetryPolicy):  # type: ignore[misc] # the driver ships no types
    """Sends an idempotent request once more, to another node, when its coordinator broke off or had no time."""

    def on_read_timeout(self, query: Any, *_args: Any, retry_num: int, **_named: Any) -> Decision:  # noqa: ANN401
        """A read may be sent again; a conditional write, whose own read may time out, may not."""
        return _once_more(query, retry_num)

    def on_write_timeout(self, *_args: Any, **_named: Any) -> Decision:  # noqa: ANN401
        """The coordinator waited for as long as we want to wait."""
        return self.RETHROW, None

    def on_unavailable(self, *_args: Any, **_named: Any) -> Decision:  # noqa: ANN401
        """Another coordinator knows of no other replicas."""
        return self.RETHROW, None

    def on_request_error(self, query: Any, consistency: int, error: Any, retry_num: int) -> Decision:  # noqa: ANN401, ARG002
        """The connection broke, or the node is overloaded or starting."""
        return _once_more(query, retry_num)


def _once_more(query: Any, retry_num: int) -> Decision:  # noqa: ANN401 - the driver's statement
    if retry_num == 0 and query.is_idempotent:
        return RetryPolicy.RETRY_NEXT_HOST, None
    return RetryPolicy.RETHROW, None


def _routing(options: CassandraOptions) -> LoadBalancingPolicy:
    near = RoundRobinPolicy() if options.local_dc is None else DCAwareRoundRobinPolicy(options.local_dc)
    return TokenAwarePolicy(near)


def profile(options: CassandraOptions) -> ExecutionProfile:
    speculative = (
        ConstantSpeculativeExecutionPolicy(options.speculative, 1)
        if options.speculative > 0
        else NoSpeculativeExecutionPolicy()
    )
    return ExecutionProfile(
        load_balancing_policy=_routing(options),
        retry_policy=OnlyIdempotent(),
        row_factory=tuple_factory,
        request_timeout=options.timeout,
        speculative_execution_policy=speculative,
    )
