"""Tests of words and pages: what they name exists."""
