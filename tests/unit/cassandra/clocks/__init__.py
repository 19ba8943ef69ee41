"""Tests of clocks and ids."""
