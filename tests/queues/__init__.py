"""Tests of queues over HTTP."""
