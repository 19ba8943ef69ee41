"""Tests of what connects to a cluster: calls, the loop of a store, options of time."""
