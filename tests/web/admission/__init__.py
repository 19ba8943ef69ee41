"""Tests of what divides the service between its applications."""
