"""Tests of the Cassandra store: scripted and simulated nodes, and a real node where one is needed."""
