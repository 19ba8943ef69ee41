"""Tests of what operators ask."""
