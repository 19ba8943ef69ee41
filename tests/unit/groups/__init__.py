"""Tests of decisions about consumer groups."""
