"""Tests of behaviour that only the embedded store has."""
