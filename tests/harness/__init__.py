"""The shared parts of fault runs: seeded fault schedules, records, checks, a proxy and reports.

The runs are in ``tests/faults`` (messages, claims) and in ``tests/qdo/faults`` (groups of workers). One command repeats
a run: ``python -m tests.harness RUN --seed N --faults KINDS --seconds S``.
"""
