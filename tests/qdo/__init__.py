"""Tests of Qdo."""
