"""What clients of other systems get, beside those systems or the native calls."""

from bench.measures.facades import emodb, mq_rqms, sqs

__all__ = ["emodb", "mq_rqms", "sqs"]
