"""Tests of the Cassandra store on a simulated cluster."""
