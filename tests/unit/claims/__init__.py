"""Tests of decisions about claims."""
