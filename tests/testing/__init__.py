"""Tests of the fixtures for users' tests."""
