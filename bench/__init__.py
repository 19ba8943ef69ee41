"""Benchmarks: each figure beside what it is compared with, measured in the same run.

``python -m bench [names] [--quick] [--json FILE]``. The method is in docs/measurements/sqlite.md.
"""
