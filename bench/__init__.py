"""Benchmarks: each side of a comparison is measured in the same run.

Usage: ``python -m bench [names] [--quick] [--json FILE]``. docs/measurements/sqlite.md describes the method.
"""
