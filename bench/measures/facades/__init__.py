"""Compares the facades with the systems that they stand for, or with the native calls."""

from bench.measures.facades import emodb, mq_rqms, sqs

__all__ = ["emodb", "mq_rqms", "sqs"]
