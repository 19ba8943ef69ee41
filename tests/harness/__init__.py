"""What fault runs share: faults by a schedule from a seed, records, checks, a proxy, and reports.

The runs are in ``tests/faults`` (messages, claims) and in ``tests/qdo/faults`` (groups of workers). Each is repeated by
one line: ``python -m tests.harness RUN --seed N --faults KINDS --seconds S``.
"""
