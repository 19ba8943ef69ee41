"""Tests of results of jobs, on every store."""
