"""Tests of the benchmark: how results become the tables of the pages."""
