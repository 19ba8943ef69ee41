"""Tests of dead letters."""
