"""Tests of command lines."""
