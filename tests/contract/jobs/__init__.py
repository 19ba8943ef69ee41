"""Tests of jobs as operators and senders see them, on every store."""
