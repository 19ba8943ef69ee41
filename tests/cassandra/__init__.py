"""Tests of parts that only the Cassandra store has, on a real server where they need one."""
