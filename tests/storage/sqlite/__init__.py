"""Tests of parts that only the SQLite store has."""
